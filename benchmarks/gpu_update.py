"""Forward and backward of one update, ours and padded, without DeepSpeed: where a GPU's time goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from benchmarks.batch import RaggedRow
from pivotopd.models.attention import use_grouped_steps
from pivotopd.models.batching import TokenBatch, micro_batches, pack_rows
from pivotopd.models.logprobs import response_logprobs
from pivotopd.objective import ppo_loss

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM


class Step(Protocol):
    """One update's forward and backward.

    Attributes:
        tokens: Real tokens, prompts and responses.
        positions: Positions computed, padding included.
    """

    tokens: int
    positions: int

    def run(self) -> float:
        """Compute the gradient and drop it; return the loss."""
        ...


class _Step(ABC):
    def __init__(
        self, model: Qwen3ForCausalLM, rows: Sequence[RaggedRow], batches: Sequence[TokenBatch], device: str
    ) -> None:
        self._model, self._rows = model, rows
        self._batches = [batch.to(device) for batch in batches]
        self._trained = sum(len(row.response_ids) for row in rows)
        self.tokens = sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
        self.positions = sum(batch.computed_tokens for batch in batches)
        self._gains = [[row.advantage] * len(row.response_ids) for row in rows]
        self._noise = [row.noise.tolist() for row in rows]

    @abstractmethod
    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Return the (N,) log-probabilities of a batch's response tokens."""

    def run(self) -> float:
        """Compute the gradient and drop it; return the loss."""
        total = 0.0
        for batch in self._batches:
            current, noise = self.logprobs(batch), batch.join(self._noise)
            mask = torch.ones_like(current, dtype=torch.bool)
            old = current.detach() + noise
            parts = ppo_loss(
                current,
                old,
                current.detach() - noise,
                batch.join(self._gains),
                mask,
                self._trained,
                0.2,
                0.01,
            )
            parts.loss.backward()  # type: ignore[no-untyped-call]
            total += float(parts.loss.detach())
        self._model.zero_grad(set_to_none=True)
        return total


class OurStep(_Step):
    """As the learner does it: packed rows, the head in chunks.

    Args:
        model: The model.
        rows: The rows.
        budget: Most positions of a micro-batch.
        device: Where.
    """

    def __init__(self, model: Qwen3ForCausalLM, rows: Sequence[RaggedRow], budget: int, device: str) -> None:
        use_grouped_steps(model)
        super().__init__(model, rows, micro_batches(rows, budget, packed=True), device)

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Return the response tokens' log-probabilities."""
        return response_logprobs(self._model, batch)


class PaddedStep(_Step):
    """As trainers without packing do it: rows as they come, padded to the longest of all, and all logits.

    Args:
        model: The model.
        rows: The rows.
        micro_rows: Rows of a micro-batch.
        device: Where.
    """

    def __init__(
        self, model: Qwen3ForCausalLM, rows: Sequence[RaggedRow], micro_rows: int, device: str
    ) -> None:
        batches = [
            pack_rows(rows, range(start, min(start + micro_rows, len(rows))))
            for start in range(0, len(rows), micro_rows)
        ]
        self._longest = max(batch.input_ids.shape[1] for batch in batches)
        super().__init__(model, rows, batches, device)
        self.positions = sum(batch.input_ids.shape[0] for batch in batches) * self._longest

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Return the response tokens' log-probabilities, by way of every position's logits."""
        length = batch.input_ids.shape[1]
        ids = torch.nn.functional.pad(batch.input_ids, (0, self._longest - length))
        logits = self._model(input_ids=ids, use_cache=False).logits.float()
        logprobs = torch.log_softmax(logits, dim=-1)
        row, place = batch.response_positions // length, batch.response_positions % length
        return logprobs[row, place, batch.targets]


def training_flops(model: Qwen3ForCausalLM, rows: Sequence[RaggedRow]) -> float:
    """Return the FLOPs of one forward and backward pass: 6 a weight and token, the head on responses only.

    Attention adds 12 * layers * heads * head size * L^2 / 2 for a causal row of L tokens.
    """
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = sum(weight.numel() for weight in model.parameters()) - head  # tied: the table is there once
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    attention = sum(6.0 * float(width) * length**2 for length in lengths)
    responses = sum(len(row.response_ids) for row in rows)
    return float(6.0 * body * sum(lengths) + 6.0 * head * responses + attention)
