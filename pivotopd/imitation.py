"""Supervised training of a small model on prompts and responses that were written, not sampled.

It knows no environment: rows are token ids.

Legend: B rows of a batch, L tokens of its longest row, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pivotopd.errors import ConfigError, NumericsError
from pivotopd.models.base import TokenIds
from pivotopd.seeds import rng_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[int, int, float], None]
"""Called with the step just done, the number of steps, and the loss in nats a weighted token."""

_WARM_UP_SHARE: Final = 0.05
"""Share of the steps in which the learning rate rises."""
_BETAS: Final = (0.9, 0.98)
_WEIGHT_DECAY: Final = 0.01
_GRADIENT_CLIP: Final = 1.0
_BUCKET_BATCHES: Final = 32
"""Batches whose rows are sorted by length together, so that a batch has little padding."""
_REPORT_STEPS: Final = 20
"""Steps between two calls of the progress callback; the loss is read, and checked, only then."""


@dataclass(frozen=True, slots=True)
class ImitationRow:
    """One demonstration as token ids.

    Attributes:
        prompt_ids: (P,) int32, at least one token.
        response_ids: (R,) int32, end token included.
    """

    prompt_ids: TokenIds
    response_ids: TokenIds


@dataclass(frozen=True, slots=True)
class ImitationPlan:
    """How to train.

    Attributes:
        steps: Optimizer steps; rows are drawn in epochs without replacement.
        batch_rows: Rows a step.
        learning_rate: Peak, reached after a short rise; then a cosine falls to zero.
        prompt_weight: Weight of a prompt token in the loss; a response token weighs 1.
        seed: Seed of the row order.
    """

    steps: int
    batch_rows: int
    learning_rate: float
    prompt_weight: float
    seed: int


@dataclass(frozen=True, slots=True)
class ImitationReport:
    """What training did.

    Attributes:
        tokens: Tokens trained on, without padding.
        response_tokens: Those of them that responses hold.
        padded_tokens: Padding positions that were computed.
        loss_nats: Mean loss of the last steps, in nats a weighted token.
    """

    tokens: int
    response_tokens: int
    padded_tokens: int
    loss_nats: float


def imitate(
    model: PreTrainedModel,
    rows: Sequence[ImitationRow],
    plan: ImitationPlan,
    progress: Progress | None = None,
) -> ImitationReport:
    """Train a model in place; it is in evaluation mode afterwards.

    The same model, rows and plan give the same weights on the same machine with the same number of threads.

    Args:
        model: A causal language model with a ``model`` trunk and an ``lm_head``.
        rows: Demonstrations.
        plan: How to train.
        progress: Told about every few steps and the last.

    Raises:
        ConfigError: There are fewer rows than a batch needs.
        NumericsError: The loss is not finite.
    """
    if len(rows) < plan.batch_rows:
        raise ConfigError(
            f"{len(rows)} demonstrations do not fill a batch of {plan.batch_rows} rows",
            where="warm_start",
            mend="raise warm_start.games or lower warm_start.batch_rows",
        )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, plan.steps)
    )
    model.train()
    tokens = responses = computed = 0
    recent: list[Tensor] = []
    loss_nats = math.nan
    for step, picked in zip(range(1, plan.steps + 1), _batches(rows, plan), strict=False):
        ids, weights = _padded([rows[index] for index in picked], plan.prompt_weight)
        loss = _loss(model, ids, weights)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_CLIP)
        optimizer.step()
        schedule.step()
        tokens += sum(len(rows[i].prompt_ids) + len(rows[i].response_ids) for i in picked)
        responses += sum(len(rows[i].response_ids) for i in picked)
        computed += ids.numel()
        recent.append(loss.detach())
        if step % _REPORT_STEPS == 0 or step == plan.steps:
            loss_nats = float(torch.stack(recent).mean())
            recent.clear()
            if not math.isfinite(loss_nats):
                raise NumericsError(
                    f"the imitation loss is {loss_nats}", where=f"warm start, step {step}",
                    mend="lower warm_start.learning_rate",
                )  # fmt: skip
            if progress:
                progress(step, plan.steps, loss_nats)
    model.eval()
    return ImitationReport(tokens, responses, computed - tokens, loss_nats)


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step from 0: a linear rise, then a cosine to zero."""
    rise = max(1, round(steps * _WARM_UP_SHARE))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _batches(rows: Sequence[ImitationRow], plan: ImitationPlan) -> Iterator[list[int]]:
    """Yield batches of row indices without end: epochs in new orders, rows of similar length together."""
    lengths = np.array([len(row.prompt_ids) + len(row.response_ids) for row in rows])
    size = plan.batch_rows
    epoch = 0
    while True:
        rng = rng_of("imitation order", plan.seed, epoch)
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), size * _BUCKET_BATCHES):
            bucket = order[start : start + size * _BUCKET_BATCHES]
            bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
            full = len(bucket) // size
            for place in rng.permutation(full):
                yield bucket[place * size : (place + 1) * size].tolist()
        epoch += 1


def _padded(rows: Sequence[ImitationRow], prompt_weight: float) -> tuple[Tensor, Tensor]:
    """Return (B, L) int64 ids, padded on the right with 0, and (B, L-1) weights of each next token."""
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    weights = np.zeros((len(rows), longest), dtype=np.float32)
    for place, row in enumerate(rows):
        start, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.response_ids)
        ids[place, :start], ids[place, start:end] = row.prompt_ids, row.response_ids
        weights[place, :start], weights[place, start:end] = prompt_weight, 1.0
    return torch.from_numpy(ids), torch.from_numpy(weights[:, 1:])


def _loss(model: PreTrainedModel, ids: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean loss of predicting ids (B, L).

    Attention is causal and padding stands on the right, so no token sees padding and no mask is needed.
    """
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    chosen = weights > 0
    losses = functional.cross_entropy(model.lm_head(hidden[chosen]), ids[:, 1:][chosen], reduction="none")
    used = weights[chosen]
    return (losses * used).sum() / used.sum()
