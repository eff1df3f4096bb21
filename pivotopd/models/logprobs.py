"""Log-probabilities of response tokens without the [tokens, vocabulary] matrix.

Legend: B rows, L tokens of a row, N response tokens of a batch, C tokens of a chunk, V vocabulary, H hidden
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pivotopd.models.batching import TokenBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_TOKENS = 1024

ChunkValues = Callable[[Tensor, slice], tuple[Tensor, ...]]
"""From the (C, V) log-probabilities of a chunk, and its place in the flat order, to some (C, ...) values."""


def response_logprobs(model: PreTrainedModel, batch: TokenBatch, chunk_tokens: int = CHUNK_TOKENS) -> Tensor:
    """Return the log-probability of every response token at temperature 1, full support.

    Only hidden states that predict a response token meet the head, ``chunk_tokens`` at a time. With gradient
    the chunks are checkpointed, so that neither pass holds more than one (C, V) matrix of logits.

    Args:
        model: A causal language model (under DeepSpeed: the engine's ``module``).
        batch: The rows, on the model's device.
        chunk_tokens: Tokens whose logits exist at once (C).

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
    model: PreTrainedModel, batch: TokenBatch, values: ChunkValues, chunk_tokens: int = CHUNK_TOKENS
) -> tuple[Tensor, ...]:
    """Return values that are made of every response token's whole distribution, without keeping those.

    Args:
        model: A causal language model (under DeepSpeed: the engine's ``module``).
        batch: The rows, on the model's device.
        values: Makes each chunk's values of its (C, V) float32 log-probabilities. With gradient it is called
            a second time in the backward pass.
        chunk_tokens: Tokens whose logits exist at once (C).

    Returns:
        What ``values`` returns, each (N, ...) in the batch's flat order.
    """
    hidden = body_states(model, batch)
    states = hidden.flatten(0, 1).index_select(0, batch.response_positions)
    head, count = model.get_output_embeddings(), states.shape[0]

    def of_chunk(part: Tensor, where: slice) -> tuple[Tensor, ...]:
        logits: Tensor = head(part)
        return values(torch.log_softmax(logits.float(), dim=-1), where)

    if count <= chunk_tokens:
        return of_chunk(states, slice(0, count))
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, count, chunk_tokens):
        where = slice(start, min(start + chunk_tokens, count))
        if torch.is_grad_enabled():
            # The non-reentrant form lets a shared (tied) weight receive its gradient in one piece.
            parts.append(checkpoint(of_chunk, states[where], where, use_reentrant=False))
        else:
            parts.append(of_chunk(states[where], where))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def body_states(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """Return the (B, L, H) last hidden states of a batch, after the final norm, before the head.

    Those of padding mean nothing. No mask is given: padding lies behind a row's tokens, so causal attention
    never sees it, and kernels without a mask are faster and need less memory.
    """
    output = model.base_model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        use_cache=False,
    )
    states: Tensor = output.last_hidden_state
    return states
