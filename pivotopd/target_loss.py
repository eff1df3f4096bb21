"""The loss that draws the current student to frozen token distributions, by whole sums over the vocabulary.

    q = target at the K kept ids, p = current student at the same ids, both renormalised over them
    D_0    = KL( q || p ) = sum_v q_v log( q_v / p_v )                           forward
    D_1    = KL( p || q ) = sum_v p_v log( p_v / q_v )                           reverse
    D_beta = beta * KL( q || m ) + (1 - beta) * KL( p || m ),   m = (1 - beta) * p + beta * q
    loss of a token = sum over its targets of weight * D

Source: PivotOPD paper (arXiv 2609.40285) Eqs. 1-3 for the two KL terms, as it states them; the generalised
Jensen-Shannon divergence of GKD (arXiv 2306.13649), its ends and its renormalised top-k as in OPSD
(siyan-zhao/OPSD, opsd_trainer.py). With K = V there is nothing to renormalise, and the sums are exact.

Legend: N response tokens of a batch, flat, C of a chunk, M of them with a target, K ids, V vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pivotopd.errors import ArtifactError
from pivotopd.methods.base import FORWARD, REVERSE, Target
from pivotopd.models.batching import TokenBatch


def divergence(lS: Tensor, lT: Tensor, mix: float) -> Tensor:  # noqa: N803 - the field's symbols
    """Return D_mix of each token.

    Args:
        lS: (M, K) log-probabilities of the current student at the kept ids, with gradient.
        lT: (M, K) of the target at the same ids.
        mix: beta; 0 forward, 1 reverse.

    Returns:
        (M,) nats.
    """
    student, teacher = lS.log_softmax(dim=-1), lT.log_softmax(dim=-1)
    if mix == FORWARD:
        return _kl(teacher, student)
    if mix == REVERSE:
        return _kl(student, teacher)
    middle = torch.logaddexp(student + math.log1p(-mix), teacher + math.log(mix))
    return mix * _kl(teacher, middle) + (1.0 - mix) * _kl(student, middle)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) over the last axis, of log-probabilities."""
    return (p.exp() * (p - q)).sum(dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Targets of one mix and one K, at most one a token; ``places`` (M,) ascend in the batch's flat order."""

    mix: float
    places: Tensor
    ids: Tensor
    nats: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BatchTargets:
    """The targets of a micro-batch's tokens. They stay in main memory; a chunk's part goes to its device."""

    groups: tuple[_Group, ...]

    def loss(self, logprobs: Tensor, where: slice) -> Tensor:
        """Return the (C,) loss of a chunk's tokens, 0 where a token has no target.

        Args:
            logprobs: (C, V) of the current student, with gradient.
            where: The chunk's place in the batch's flat order.
        """
        total = logprobs.new_zeros(len(logprobs))
        for group in self.groups:
            first, last = np.searchsorted(group.places.numpy(), (where.start, where.stop)).tolist()
            if first == last:
                continue
            rows = (group.places[first:last] - where.start).to(logprobs.device)
            ids = group.ids[first:last].to(logprobs.device, torch.int64)
            target = group.nats[first:last].to(logprobs.device, logprobs.dtype)
            weights = group.weights[first:last].to(logprobs.device, logprobs.dtype)
            apart = divergence(logprobs[rows[:, None], ids], target, group.mix)
            total = total.index_add(0, rows, weights * apart)
        return total


def batch_targets(batch: TokenBatch, targets: Sequence[Sequence[Target]]) -> BatchTargets:
    """Gather the targets of a batch.

    Args:
        batch: The micro-batch.
        targets: Targets of each row of what was batched.

    Raises:
        ArtifactError: A target has not as many tokens as its row's response.
    """
    members: defaultdict[tuple[int, float, int], list[tuple[int, Target]]] = defaultdict(list)
    start = 0
    for row, length in zip(batch.rows, batch.response_lengths, strict=True):
        for slot, target in enumerate(targets[row]):
            tokens, width = target.distributions.ids.shape
            if tokens != length:
                raise ArtifactError(
                    f"row {row} has distributions at {tokens} of {length} response tokens",
                    mend="rerun the stage that scored it",
                )
            members[slot, target.mix, width].append((start, target))
        start += length
    return BatchTargets(tuple(_group(mix, found) for (_, mix, _), found in members.items()))


def _group(mix: float, members: Sequence[tuple[int, Target]]) -> _Group:
    lengths = [len(target.distributions.ids) for _, target in members]
    places = [np.arange(start, start + size) for (start, _), size in zip(members, lengths, strict=True)]
    nats = np.concatenate([target.distributions.nats for _, target in members])
    finite = np.isfinite(nats).all(axis=1)  # the others train on nothing, and must not touch the gradient
    return _Group(
        mix,
        places=torch.from_numpy(np.concatenate(places)[finite]),
        ids=torch.from_numpy(np.concatenate([target.distributions.ids for _, target in members])[finite]),
        nats=torch.from_numpy(nats[finite]),
        weights=torch.from_numpy(np.repeat([target.weight for _, target in members], lengths)[finite]),
    )
