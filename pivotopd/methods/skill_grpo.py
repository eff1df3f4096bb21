"""Skill-GRPO: GRPO on prompts that hold retrieved skills.

    A_l = A_RL     lO, lS and lR are of the prompt with the skills, as it was played

Source: PivotOPD's comparison (its App. D.3) and ZJU-REAL/SDAR (main_skill_grpo.py): the six best skills of
the bank stand in every training prompt, and none at test time. The formula is GRPO's; what differs are the
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, outcome_advantages
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import SkillGrpoMethod


class SkillGrpo(Method):
    """Outcome advantage of rows that were played with skills."""

    def __init__(self, section: SkillGrpoMethod) -> None:
        self.needs = Needs(skill_prompts=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part."""
        del iteration
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [of_tokens(constant(row, value), value) for row, value in zip(rows, outcomes, strict=True)]
