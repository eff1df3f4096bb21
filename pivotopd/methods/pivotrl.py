"""PivotRL, online: the outcome, but only at turns from which episodes went different ways.

    A_l = A_RL * 1[ the turn's observation occurs in >= 2 rows of its group whose episode returns differ ]

Source: PivotRL, arXiv 2603.21383. The original works offline: from states of expert trajectories it keeps
those whose local rollouts differ in reward, and takes single turns from there. PivotOPD's comparison (its
App. D.3) trains it from rollouts and does not say how; here rows of one task that show the same
observation form an anchor group, as in GiGPO (arXiv 2505.10978). A turn outside keeps its place in the
token mean, with advantage 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, outcome_advantages
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import PivotRlMethod


class PivotRl(Method):
    """Outcome advantage of turns with outcome variance; needs neither teacher nor hints."""

    def __init__(self, section: PivotRlMethod) -> None:
        self.needs = Needs()
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part."""
        del iteration
        returns: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
        for row in rows:
            if row.source == "rollout":
                returns[row.group, row.observation_key].add(row.episode_return)
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        kept = [
            value if len(returns[row.group, row.observation_key]) > 1 else 0.0
            for row, value in zip(rows, outcomes, strict=True)
        ]
        return [of_tokens(constant(row, value), value) for row, value in zip(rows, kept, strict=True)]
