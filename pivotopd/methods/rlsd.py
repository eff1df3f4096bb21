"""RLSD: the outcome gives direction, the self-teacher with a skill decides how much each token gets.

    w_l = clip( exp( sign(A) * (lT[skill] - lO) ), 1 - eps_w, 1 + eps_w )
    A_l = A * ( (1 - lambda) + lambda * w_l )          A = A_RL of the row; its sign is never flipped

lambda falls in a line to 0. A row whose skill did not fit into the prompt keeps A.

Source: RLSD, arXiv 2604.03128, as described by third parties, and the re-implementation in SDAR's
repository (ZJU-REAL/SDAR, rlsd_utils.py), from which lambda's 100 iterations come. In PivotOPD's
comparison the self-teacher is the student of the same iteration; the original refreshes it every 10 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivotopd.methods.advantage import (
    constant,
    falling,
    of_tokens,
    outcome_advantages,
    require_signal,
    signal_log_ratio,
)
from pivotopd.methods.base import Method, Nats, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import RlsdMethod


class Rlsd(Method):
    """Outcome advantage, reshaped token by token."""

    def __init__(self, section: RlsdMethod) -> None:
        self.needs = Needs(skill=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order.

        Raises:
            ArtifactError: No row was scored under a skill, or scores differ in length.
        """
        require_signal(rows, "skill_nats", every=False)
        mix = falling(self._section.mix, self._section.mix_iterations, iteration)
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [
            of_tokens(self._reshaped(row, value, mix), value)
            for row, value in zip(rows, outcomes, strict=True)
        ]

    def _reshaped(self, row: Row, outcome: float, mix: float) -> Nats:
        ratio = signal_log_ratio(row, "skill_nats")
        if ratio is None:
            return constant(row, outcome)
        bound = self._section.bound
        weight = np.exp(np.clip(np.sign(outcome) * ratio, -20.0, 20.0))  # far outside the clip below
        return np.asarray(outcome * (1.0 - mix + mix * np.clip(weight, 1.0 - bound, 1.0 + bound)), np.float32)
