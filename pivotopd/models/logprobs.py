"""Log-probabilities of response tokens without the [tokens, vocabulary] matrix, forward and backward.

Only hidden states that predict a response token meet the head, a chunk of them at a time. The backward pass
computes each chunk's logits a second time and turns them into gradients at once, so that neither pass holds
more than a few (C, V) matrices, and the head's weight receives its gradient in one piece.

Legend: B rows, L tokens of a row, N response tokens of a batch, C tokens of a chunk, V vocabulary, H hidden
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pivotopd.models.attention import check_packs, packed_mask
from pivotopd.models.batching import TokenBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_LOGITS = 2**25
"""Logits that exist at once: 128 MiB in float32, 220 tokens of a vocabulary of 152 thousand."""
_MOST_TOKENS = 1024

ChunkValues = Callable[[Tensor, slice], tuple[Tensor, ...]]
"""From the (C, V) log-probabilities of a chunk, and its place in the flat order, to some (C, ...) values."""


def response_logprobs(model: PreTrainedModel, batch: TokenBatch, chunk_tokens: int | None = None) -> Tensor:
    """Return the log-probability of every response token at temperature 1, full support.

    Args:
        model: A causal language model (under DeepSpeed: the engine's ``module``).
        batch: The rows, on the model's device.
        chunk_tokens: Tokens whose logits exist at once (C); None fits :data:`CHUNK_LOGITS`.

    Returns:
        (N,) float32, in the batch's flat order.
    """
    (values,) = response_values(
        model, batch, lambda chunk, where: (sampled(chunk, batch, where),), chunk_tokens
    )
    return values


def sampled(logprobs: Tensor, batch: TokenBatch, where: slice) -> Tensor:
    """Return the (C,) log-probabilities of a chunk's own response tokens."""
    return logprobs.gather(1, batch.targets[where, None]).squeeze(1)


def response_values(
    model: PreTrainedModel, batch: TokenBatch, values: ChunkValues, chunk_tokens: int | None = None
) -> tuple[Tensor, ...]:
    """Return values that are made of every response token's whole distribution, without keeping those.

    Args:
        model: A causal language model (under DeepSpeed: the engine's ``module``).
        batch: The rows, on the model's device.
        values: Makes each chunk's values of its (C, V) float32 log-probabilities. With gradient it is called
            a second time in the backward pass; each value must then be a float.
        chunk_tokens: Tokens whose logits exist at once (C); None fits :data:`CHUNK_LOGITS`.

    Returns:
        What ``values`` returns, each (N, ...) in the batch's flat order.
    """
    hidden = body_states(model, batch)
    states = hidden.flatten(0, 1).index_select(0, batch.response_positions)
    head = model.get_output_embeddings()
    size = chunk_tokens or max(1, min(_MOST_TOKENS, CHUNK_LOGITS // head.out_features))
    if torch.is_grad_enabled():
        result: tuple[Tensor, ...] = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
            states, head.weight, head.bias, values, size
        )
        return result
    return _values(states, head.weight, head.bias, values, size)


def _chunks(count: int, size: int) -> list[slice]:
    """Return the chunks of some tokens; one, empty, where there is none."""
    return [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]


def _logprobs(part: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.log_softmax(linear(part, weight, bias).float(), dim=-1)


def _values(
    states: Tensor, weight: Tensor, bias: Tensor | None, values: ChunkValues, size: int
) -> tuple[Tensor, ...]:
    parts = [values(_logprobs(states[where], weight, bias), where) for where in _chunks(len(states), size)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


class _ChunkedHead(torch.autograd.Function):
    """The head, the softmax and what is made of it, chunk by chunk, in both directions.

    The weight and its gradient pass through as one tensor each: ZeRO wants a single gradient of a weight.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, values: ChunkValues, size: int
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(states, weight, bias)
        ctx.values, ctx.size = values, size
        return _values(states, weight, bias, values, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias = ctx.saved_tensors
        to_states, to_weight, to_bias = ctx.needs_input_grad[:3]
        of_states = torch.empty_like(states) if to_states else None
        # chunks are added up in float32 also where the weights are bfloat16
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        for where in _chunks(len(states), ctx.size):
            part = states[where]
            of_logits = _logit_gradient(ctx, part, weight, bias, where, gradients)
            if of_states is not None:
                of_states[where] = of_logits @ weight
            if of_weight is not None and of_weight.dtype == of_logits.dtype:
                of_weight.addmm_(of_logits.t(), part)
            elif of_weight is not None:
                of_weight += of_logits.t() @ part
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        return (
            of_states,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            None,
            None,
        )


def _logit_gradient(
    ctx: Any,
    part: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    where: slice,
    gradients: tuple[Tensor, ...],
) -> Tensor:
    """Return the (C, V) gradient at a chunk's logits; softmax by hand, to hold as few matrices as can be.

    With g the gradient at the log-probabilities p: dlogits = g - exp(p) * sum_v g_v.
    """
    logprobs = _logprobs(part, weight, bias)
    with torch.enable_grad():
        found = ctx.values(logprobs.requires_grad_(), where)
        # a chunk without any target has a loss that is constant
        used = [(one, given[where]) for one, given in zip(found, gradients, strict=True) if one.requires_grad]
        (of_logprobs,) = torch.autograd.grad([one for one, _ in used], logprobs, [given for _, given in used])
    logprobs = logprobs.detach()
    total = of_logprobs.sum(dim=-1, keepdim=True)
    return of_logprobs.sub_(logprobs.exp_().mul_(total)).to(part.dtype)


def body_states(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """Return the (B, L, H) last hidden states of a batch, after the final norm, before the head.

    Those of padding mean nothing. A padded batch gets no mask: padding lies behind a row's tokens, so causal
    attention never sees it, and kernels without a mask are faster and need less memory.

    Raises:
        ConfigError: The batch is packed, and the model's attention is not ours.
    """
    mask = None
    if batch.row_ends is not None:
        check_packs(model)
        mask = packed_mask(batch.row_ends, batch.stems)
    output = model.base_model(
        input_ids=batch.input_ids,
        attention_mask=mask,
        position_ids=batch.position_ids,
        use_cache=False,
    )
    states: Tensor = output.last_hidden_state
    return states
