"""The loss: clipped surrogate and reference KL, one token mean over the whole mini-batch.

    rho_l = exp(lS - lO)
    Loss  = (1 / N) * sum_l [ -min( rho_l A_l , clip(rho_l, 1 - eps, 1 + eps) A_l )  +  beta * k3_l ]
    k3_l  = exp(lR - lS) - 1 - (lR - lS)
    A method with an auxiliary loss adds (1 / N) * sum_l aux_l, over the tokens that have an lT or a target.

Source: PivotOPD paper (arXiv 2609.40285) Eq. 7 and App. D.1; k3 and its bounds as verl's low-variance KL.
N is given by the caller: the trained tokens of the mini-batch over all ranks and micro-batches. Thus the sum
of the parts' gradients does not depend on how the mini-batch was cut.

Legend: N tokens, flat. lS current student (gradient), lO frozen student, lR initial policy, lT teacher
of the auxiliary loss, all in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pivotopd.methods.base import AuxiliaryLoss

LOG_RATIO_BOUND_NATS = 20.0
"""Log-ratios are cut here before exp, so that none overflows."""
KL_BOUND_NATS = 10.0
"""Bound of one token's KL estimate."""


@dataclass(frozen=True, slots=True)
class LossParts:
    """The loss of some tokens of a mini-batch; parts of one mini-batch add up, except ``ratio_gap``.

    Attributes:
        loss: Scalar with gradient: this part's share of the mini-batch's loss.
        policy_loss: Its clipped surrogate, divided by the denominator.
        auxiliary_loss: The method's auxiliary loss, divided by the denominator; 0 without one.
        kl_nats: Its KL to the initial policy, divided by the denominator, without the coefficient.
        clipped: Number of tokens whose ratio was outside the clip range in the direction that stops gradient.
        ratio_sum: Sum of the PPO ratios.
        ratio_gap: Largest distance of a ratio from 1; 0 without tokens.
        tokens: Number of tokens that took part.
        dropped: Tokens inside the mask that were left out because a value was not finite.
    """

    loss: Tensor
    policy_loss: float
    auxiliary_loss: float
    kl_nats: float
    clipped: float
    ratio_sum: float
    ratio_gap: float
    tokens: int
    dropped: int


def ppo_loss(
    lS: Tensor,  # noqa: N803  the field's symbols
    lO: Tensor,  # noqa: N803
    lR: Tensor,  # noqa: N803
    advantage: Tensor,
    mask: Tensor,
    denominator: float,
    clip_ratio: float,
    kl_coefficient: float,
    auxiliary: AuxiliaryLoss | None = None,
    lT: Tensor | None = None,  # noqa: N803
    *,
    target_loss: Tensor | None = None,
) -> LossParts:
    """Return the loss of flat tokens.

    Args:
        lS: (N,) log-probabilities of the current student, with gradient.
        lO: (N,) of the frozen student.
        lR: (N,) of the initial policy.
        advantage: (N,) what enters the surrogate.
        mask: (N,) bool, True where a token trains.
        denominator: Trained tokens of the whole mini-batch; positive.
        clip_ratio: eps.
        kl_coefficient: beta.
        auxiliary: The method's loss beside PPO, or None.
        lT: (N,) its teacher's log-probabilities, not a number where a token takes no part; with it only.
        target_loss: (N,) the loss of :mod:`pivotopd.target_loss`, with gradient, in place of ``auxiliary``.

    Returns:
        The parts. A token with a value that is not finite leaves the mask and is counted. Without any token
        left the loss is zero and still has a gradient graph, so that every rank can run its backward pass.
    """
    finite = torch.isfinite(lS.detach()) & torch.isfinite(lO) & torch.isfinite(lR) & torch.isfinite(advantage)
    keep = mask & finite
    current, old, reference, gain = lS[keep], lO[keep], lR[keep], advantage[keep]
    ratio = torch.exp(_bounded(current - old))
    clipped_ratio = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    surrogate = torch.minimum(ratio * gain, clipped_ratio * gain)
    kl = low_variance_kl(current, reference)
    policy_loss, kl_loss = -surrogate.sum() / denominator, kl.sum() / denominator
    beside = torch.zeros_like(policy_loss)
    if auxiliary is not None and lT is not None:
        part = torch.isfinite(lT[keep])
        beside = auxiliary(current[part], old[part], lT[keep][part]).sum() / denominator
    if target_loss is not None:
        beside = beside + target_loss[keep].sum() / denominator
    with torch.no_grad():
        gap = (ratio - 1.0).abs().max().item() if ratio.numel() else 0.0
        clipped = (clipped_ratio * gain < ratio * gain).sum().item()
    return LossParts(
        loss=policy_loss + kl_coefficient * kl_loss + beside,
        policy_loss=policy_loss.item(),
        auxiliary_loss=beside.item(),
        kl_nats=kl_loss.item(),
        clipped=clipped,
        ratio_sum=ratio.sum().item(),
        ratio_gap=gap,
        tokens=int(keep.sum().item()),
        dropped=int((mask & ~finite).sum().item()),
    )


def low_variance_kl(current: Tensor, reference: Tensor) -> Tensor:
    """Return the (N,) k3 estimate of KL(current || reference) from samples of current, bounded as in verl."""
    gap = _bounded(reference - current)
    return (torch.exp(gap) - 1.0 - gap).clamp(-KL_BOUND_NATS, KL_BOUND_NATS)


def _bounded(gap: Tensor) -> Tensor:
    return gap.clamp(-LOG_RATIO_BOUND_NATS, LOG_RATIO_BOUND_NATS)
