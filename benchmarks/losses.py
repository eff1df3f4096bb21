"""The loss over a large vocabulary, chunked as the learner has it, and naive; for memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from benchmarks.batch import RaggedRow, random_model
from pivotopd.models.batching import TokenBatch, pack_rows
from pivotopd.models.logprobs import response_logprobs
from pivotopd.objective import ppo_loss
from pivotopd.seeds import rng_of

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

Side = Literal["chunked", "naive"]
ROW_TOKENS = 512
PROMPT_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """What the loss is taken of: T response tokens of a one-layer model.

    Attributes:
        tokens: T.
        vocabulary: V.
        hidden: H.
        device: Where.
        dtype: Type of weights.
    """

    tokens: int
    vocabulary: int = 151_936
    hidden: int = 256
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def model(self) -> Qwen3ForCausalLM:
        """Return the model with gradients in place, so that they are no part of the peak."""
        model = random_model(
            layers=1,
            hidden=self.hidden,
            heads=4,
            kv_heads=2,
            intermediate=self.hidden,
            vocabulary=self.vocabulary,
            device=self.device,
            dtype=self.dtype,
        )
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        return model

    def batch(self) -> TokenBatch:
        """Return rows of 512 response tokens."""
        rng = rng_of("loss memory", self.tokens)
        size = min(ROW_TOKENS, self.tokens)
        rows = [
            RaggedRow(
                rng.integers(3, self.vocabulary, PROMPT_TOKENS).tolist(),
                rng.integers(3, self.vocabulary, size).tolist(),
                1.0,
                rng.normal(size=size).astype("float32"),
            )
            for _ in range(self.tokens // size)
        ]
        return pack_rows(rows, range(len(rows))).to(self.device)


def backward(model: Qwen3ForCausalLM, batch: TokenBatch, side: Side) -> float:
    """Run the loss forward and backward; return it."""
    current = response_logprobs(model, batch) if side == "chunked" else _naive(model, batch)
    old = current.detach() + 0.05 * torch.sin(torch.arange(len(current), device=current.device))
    gain = torch.cos(torch.arange(len(current), device=current.device) * 0.1)
    mask = torch.ones_like(current, dtype=torch.bool)
    parts = ppo_loss(current, old, old.flip(0) * 0 + current.detach(), gain, mask, len(current), 0.2, 0.01)
    parts.loss.backward()  # type: ignore[no-untyped-call]
    return float(parts.loss.detach())


def _naive(model: Qwen3ForCausalLM, batch: TokenBatch) -> Tensor:
    """Return log-probabilities by way of all logits in float32, as trainers had it for long."""
    logits = model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits.float()
    chosen = logits.flatten(0, 1).index_select(0, batch.response_positions)
    return torch.log_softmax(chosen, dim=-1).gather(1, batch.targets[:, None]).squeeze(1)


def gradient_norm(model: Qwen3ForCausalLM) -> float:
    """Return the norm of all gradients, for the comparison of results."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))
