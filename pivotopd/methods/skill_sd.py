"""Skill-SD: the outcome, and a reverse KL to the self-teacher with one retrieved skill.

    A_l   = A_RL
    aux_l = lambda * rho_l * ( exp(-d_l) - 1 + d_l )       d_l = lS - lT[skill],  rho_l = exp(lS - lO)

At rho = 1 the gradient is -lambda * (lT - lS) * grad lS, that of the reverse KL.

Source: Skill-SD, arXiv 2604.10674, as described by third parties, and the re-implementation in
ZJU-REAL/SDAR (skillsd_utils.py), which cuts -d at 20 and log rho at 10. The skill is retrieved by UCB over
the bank; the teacher is the student of the same iteration. A row whose skill did not fit takes no part in
the auxiliary loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pivotopd.methods.advantage import outcome_beside_skill
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import SkillSdMethod

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ReverseKl:
    """The importance-weighted k3 term.

    Attributes:
        weight: lambda.
    """

    weight: float

    def __call__(self, lS: Tensor, lO: Tensor, lT: Tensor) -> Tensor:  # noqa: N803 - the field's symbols
        """Return the (N,) loss; see :class:`~pivotopd.methods.base.AuxiliaryLoss`."""
        gap = lS - lT
        ratio = (lS - lO).clamp(max=10.0).exp()
        return self.weight * ratio * ((-gap).clamp(max=20.0).exp() - 1.0 + gap)


class SkillSd(Method):
    """Outcome advantage with the KL beside it."""

    def __init__(self, section: SkillSdMethod) -> None:
        self.needs = Needs(skill=True)
        self.auxiliary = ReverseKl(section.weight)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: No row was scored under a skill.
        """
        del iteration
        return outcome_beside_skill(rows, normalise_std=self._section.normalise_std)
