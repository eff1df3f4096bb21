"""Log-probabilities of response tokens without the [tokens, vocabulary] matrix.

Legend: B rows, L tokens of a row, N response tokens of a batch, C tokens of a chunk, V vocabulary, H hidden
size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pivotopd.models.batching import TokenBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_TOKENS = 1024


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
    hidden = body_states(model, batch)
    states = hidden.flatten(0, 1).index_select(0, batch.response_positions)
    head = model.get_output_embeddings()
    if states.shape[0] <= chunk_tokens:
        return _chunk(head, states, batch.targets)
    parts: list[Tensor] = []
    for part, targets in zip(
        torch.split(states, chunk_tokens), torch.split(batch.targets, chunk_tokens), strict=True
    ):
        if torch.is_grad_enabled():
            # The non-reentrant form lets a shared (tied) weight receive its gradient in one piece.
            parts.append(checkpoint(_chunk, head, part, targets, use_reentrant=False))
        else:
            parts.append(_chunk(head, part, targets))
    return torch.cat(parts)


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


def _chunk(head: torch.nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    """Return (C,) float32 log-probabilities of ``targets`` (C,) given hidden ``states`` (C, H)."""
    logits: Tensor = head(states)
    return torch.log_softmax(logits.float(), dim=-1).gather(1, targets[:, None]).squeeze(1)
