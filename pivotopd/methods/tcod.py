"""TCOD: a larger model's log-ratio, first on few turns of an episode, on more of them with time.

    k   = min( 1 + floor(iteration / eta), max_turns )
    A_l = coefficient * ( lT[larger model] - lO )

    direction=f2b: on turns t < k; A_l = 0 on later turns, which the original does not play
    direction=b2f: on every turn of the student, which plays after the oracle has played all but the last k
                   turns of a shortest way; the oracle's turns are no rows

Source: TCOD, arXiv 2604.24005, and kokolerk/TCOD (TCOD_f2b_workflow.py, on_policy_distill_advantage.py):
coefficient 1, eta 6 (b2f: 5) and 30 turns on ALFWorld. In its b2f an expert or teacher plays the beginning;
here the environment's oracle does. The original takes a mean over sequences of their token means and no
reference KL; in PivotOPD's comparison all share one loss.
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
        """Return how many turns of an episode are the student's in an iteration (k)."""
        return self._section.depth_cut.turns_at(iteration)

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order.

        Raises:
            ArtifactError: A rollout row was not scored by the larger model, or scores differ in length.
        """
        require_signal(rows, "teacher_nats", every=True)
        limit, forward = self.turns_at(iteration), self._section.direction == "f2b"
        ratios = [
            None if forward and row.turn >= limit else signal_log_ratio(row, "teacher_nats") for row in rows
        ]
        return [
            of_tokens(constant(row, 0.0) if ratio is None else self._section.coefficient * ratio)
            for row, ratio in zip(rows, ratios, strict=True)
        ]
