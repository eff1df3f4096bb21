"""TCOD, forward to backward: a larger model's log-ratio on the first turns, on more of them with time.

    A_l = coefficient * ( lT[larger model] - lO )      turns t < 1 + floor(iteration / eta), at most max_turns
    A_l = 0                                            later turns, which the original does not play

Source: TCOD, arXiv 2604.24005, and kokolerk/TCOD (TCOD_f2b_workflow.py, on_policy_distill_advantage.py):
coefficient 1, eta 6 and 30 turns on ALFWorld. Its backward-to-forward variant needs demonstrations and is
not here. The original takes a mean over sequences of their token means and no reference KL; in PivotOPD's
comparison all share one loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, require_signal, signal_log_ratio
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import TcodMethod


class Tcod(Method):
    """Reverse-KL score gradient to a larger model, under a curriculum of depth."""

    def __init__(self, section: TcodMethod) -> None:
        self.needs = Needs(larger_teacher=True, depth_cut=True)
        self._section = section

    def turns_at(self, iteration: int) -> int:
        """Return how many turns of an episode are played and train in an iteration."""
        return self._section.depth_cut.turns_at(iteration)

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order.

        Raises:
            ArtifactError: A rollout row was not scored by the larger model, or scores differ in length.
        """
        require_signal(rows, "teacher_nats", every=True)
        limit = self.turns_at(iteration)
        ratios = [signal_log_ratio(row, "teacher_nats") if row.turn < limit else None for row in rows]
        return [
            of_tokens(constant(row, 0.0) if ratio is None else self._section.coefficient * ratio)
            for row, ratio in zip(rows, ratios, strict=True)
        ]
