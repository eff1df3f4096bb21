"""SOD: the outcome, and a larger model's log-ratio, with less weight where the student has drifted from it.

    d_k = mean over the tokens of turn k of | lO - lT[larger model] |
    w_1 = 1,   w_k = min( prod_{u<k} (d_u + e) / (d_{u+1} + e), 1 + d_max )
                   = min( (d_1 + e) / (d_k + e), 1 + d_max )
    A_l = A_RL + coefficient * w_k * ( lT - lO )

Source: SOD, arXiv 2605.07725, and YoungZ365/SOD (compute_stepwise_opd_weights): e 1e-6, coefficient 1,
d_max 0.2 in its script. The product telescopes, so only the first turn and this one matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivotopd.methods.advantage import (
    by_episode,
    constant,
    of_tokens,
    outcome_advantages,
    require_signal,
    signal_log_ratio,
)
from pivotopd.methods.base import Method, Nats, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import SodMethod


class Sod(Method):
    """Outcome advantage and a distillation advantage, weighted turn by turn."""

    def __init__(self, section: SodMethod) -> None:
        self.needs = Needs(larger_teacher=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: A rollout row was not scored by the larger model, or scores differ in length.
        """
        del iteration
        require_signal(rows, "teacher_nats", every=True)
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        ratios = [signal_log_ratio(row, "teacher_nats") for row in rows]
        weights = [0.0] * len(rows)
        for members in by_episode(rows):
            drifts = [_drift(ratios[index]) for index in members]
            for index, weight in zip(members, self.weights(drifts), strict=True):
                weights[index] = weight
        return [
            of_tokens(constant(row, value) if ratio is None else value + weight * ratio, value)
            for row, value, weight, ratio in zip(rows, outcomes, weights, ratios, strict=True)
        ]

    def weights(self, drifts_nats: Sequence[float]) -> list[float]:
        """Return coefficient * w_k of an episode's turns from their d_k."""
        floor, top = self._section.floor_nats, 1.0 + self._section.headroom
        first = drifts_nats[0] + floor
        return [self._section.coefficient * min(first / (drift + floor), top) for drift in drifts_nats]


def _drift(ratio: Nats | None) -> float:
    return 0.0 if ratio is None or not ratio.size else float(np.abs(ratio).mean(dtype=np.float64))
