"""SDAR: the outcome, and a gated likelihood of the tokens that the self-teacher with a skill prefers.

    A_l   = A_RL
    aux_l = lambda * g_l * ( lT[skill] - lS )      g_l = sg( sigmoid( beta * (lT - lS) ) )

The gradient goes through the last lS only: -lambda * g_l * grad lS. That raises the likelihood of sampled
tokens, each by its gate; a token that the teacher rejects has a gate near 0. It is not the gradient of a
reverse KL.

Source: SDAR, arXiv 2605.15155, and ZJU-REAL/SDAR (sdar_utils.py): beta 5, lambda 0.01 in all scripts. A
row whose skill did not fit into the prompt takes no part in the auxiliary loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pivotopd.methods.advantage import outcome_beside_skill
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import SdarMethod

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gate:
    """The gated term.

    Attributes:
        weight: lambda.
        sharpness: beta.
    """

    weight: float
    sharpness: float

    def __call__(self, lS: Tensor, lO: Tensor, lT: Tensor) -> Tensor:  # noqa: N803 - the field's symbols
        """Return the (N,) loss; see :class:`~pivotopd.methods.base.AuxiliaryLoss`."""
        del lO
        gap = lT - lS
        return self.weight * (self.sharpness * gap.detach()).sigmoid() * gap


class Sdar(Method):
    """Outcome advantage with the gate beside it."""

    def __init__(self, section: SdarMethod) -> None:
        self.needs = Needs(skill=True)
        self.auxiliary = Gate(section.weight, section.sharpness)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: No row was scored under a skill.
        """
        del iteration
        return outcome_beside_skill(rows, normalise_std=self._section.normalise_std)
