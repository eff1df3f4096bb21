"""GRPO: the outcome alone.

    A_l = A_RL     the same for all tokens of all turns of an episode, but for penalties

Source: arXiv 2402.03300; the estimator of A_RL is in :mod:`pivotopd.methods.advantage`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivotopd.config import GrpoMethod
from pivotopd.methods.advantage import outcome_advantages
from pivotopd.methods.base import Needs, Row, TokenAdvantage


class Grpo:
    """Group-relative outcome advantage; needs neither teacher nor hints."""

    def __init__(self, section: GrpoMethod) -> None:
        self.needs = Needs()
        self._section = section

    def advantages(self, rows: Sequence[Row]) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; rows of one update come together, groups complete."""
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [
            TokenAdvantage(total=np.full(row.plain_nats.shape, outcome, np.float32), outcome=outcome)
            for row, outcome in zip(rows, outcomes, strict=True)
        ]
