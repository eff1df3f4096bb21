"""OPID: the outcome, and the log-ratio under a skill that an analyser wrote in hindsight.

    A_l = A_RL + weight * ( lT[routed skill] - lO )       neither clipped nor normalised

An analyser model reads each finished episode and writes one skill for the episode and some for single
turns. A turn with a skill of its own is scored under that one, any other under the episode's (critical
first). A row without a skill, as after an unreadable reply, keeps A_RL; so do all rows of an iteration of
which no reply could be read.

Source: OPID, arXiv 2606.26790, and jinyangwu/OPID (gigpo/core_gigpo.py, opid/prompting.py): weight 0.001
for both kinds. PivotOPD's comparison takes its common teacher as the analyser.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, outcome_advantages, signal_log_ratio
from pivotopd.methods.base import Method, Nats, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import OpidMethod


class Opid(Method):
    """Outcome advantage and a small distillation advantage."""

    def __init__(self, section: OpidMethod) -> None:
        self.needs = Needs(labels=True, routed_skill=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: Scores differ in length.
        """
        del iteration
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [of_tokens(self._sum(row, value), value) for row, value in zip(rows, outcomes, strict=True)]

    def _sum(self, row: Row, outcome: float) -> Nats:
        ratio = signal_log_ratio(row, "skill_nats")
        return constant(row, outcome) if ratio is None else outcome + self._section.weight * ratio
