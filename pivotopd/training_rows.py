"""What an update takes and tells: its rows, and one report an optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pivotopd.methods.base import Target
from pivotopd.models.base import Nats


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRow:
    """One row of an update.

    Attributes:
        prompt_ids: (P,) prompt, never with a hint.
        response_ids: (R,) response.
        advantage: (R,) what enters PPO.
        old_nats: (R,) log-probabilities under the frozen student (lO).
        reference_nats: (R,) under the initial policy (lR).
        mask: (R,) bool, False where a token must not train.
        is_recovery: A recovery turn.
        teacher_nats: (R,) lT of the method's auxiliary loss; None where the row takes no part in it.
        targets: Distributions that the row's tokens are drawn to.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    advantage: Nats
    old_nats: Nats
    reference_nats: Nats
    mask: npt.NDArray[np.bool_]
    is_recovery: bool
    teacher_nats: Nats | None = None
    targets: tuple[Target, ...] = ()

    @property
    def keep(self) -> npt.NDArray[np.bool_]:
        """(R,) tokens that train: in the mask, every value finite."""
        finite = np.isfinite(self.advantage) & np.isfinite(self.old_nats) & np.isfinite(self.reference_nats)
        if self.teacher_nats is not None:
            finite &= np.isfinite(self.teacher_nats)
        for target in self.targets:
            finite &= np.isfinite(target.distributions.nats).all(axis=1)
        return np.asarray(self.mask & finite, np.bool_)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step; the fields of :class:`pivotopd.records.Update`, and two more at the end.

    Attributes:
        step: Optimizer step inside the update, from 0.
        loss, policy_loss, auxiliary_loss, kl_nats: Token means over the mini-batch.
        clip_fraction: Share of tokens whose ratio was clipped.
        ratio_mean: Mean PPO ratio; 1 without tokens.
        gradient_norm: Global norm before clipping; infinite where the gradient was not finite.
        rows, recovery_rows: Rows of the mini-batch, recovery rows among them.
        tokens: Tokens that trained, the denominator.
        padded_tokens: Padding positions that were computed, over all ranks.
        dropped_tokens: Response tokens that did not train: masked, or not finite.
        skipped: The weights were left as they were: no token to train (tokens is 0), or a bad gradient.
        repeated_tokens: Tokens, prompts included, of rows equal to another one: computed with it, at once.
        ratio_gap: Largest distance of a token's ratio from 1. In the first step it must be near 0: it shows
            that the learner and the scorer of ``old_nats`` compute the same log-probabilities.
    """

    step: int
    loss: float
    policy_loss: float
    auxiliary_loss: float
    kl_nats: float
    clip_fraction: float
    ratio_mean: float
    gradient_norm: float
    rows: int
    recovery_rows: int
    tokens: int
    padded_tokens: int
    dropped_tokens: int
    skipped: bool
    ratio_gap: float
    repeated_tokens: int = 0
