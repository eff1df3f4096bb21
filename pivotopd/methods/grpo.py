"""GRPO: the outcome alone.

    A_l = A_RL     the same for all tokens of all turns of an episode, but for penalties

Source: arXiv 2402.03300; the estimator of A_RL is in :mod:`pivotopd.methods.advantage`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, outcome_advantages
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import GrpoMethod


class Grpo(Method):
    """Group-relative outcome advantage; needs neither teacher nor hints."""

    def __init__(self, section: GrpoMethod) -> None:
        self.needs = Needs()
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part."""
        del iteration
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [of_tokens(constant(row, value), value) for row, value in zip(rows, outcomes, strict=True)]
