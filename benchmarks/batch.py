"""A ragged batch of turns and a random model, alike for every side of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pivotopd.models.base import Nats
from pivotopd.seeds import rng_of, seed_of

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long turns are: lognormal, cut.

    Attributes:
        prompt: Median prompt, tokens.
        response: Median response, tokens.
        spread: Standard deviation of both logarithms.
        longest_prompt: Cap.
        longest_response: Cap.
    """

    prompt: int = 500
    response: int = 100
    spread: float = 0.45
    longest_prompt: int = 2048
    longest_response: int = 512

    def shortened(self, factor: int) -> Lengths:
        """Return the same distribution of shorter turns."""
        caps = self.longest_prompt // factor, self.longest_response // factor
        return Lengths(self.prompt // factor, self.response // factor, self.spread, *caps)


@dataclass(frozen=True, slots=True, eq=False)
class RaggedRow:
    """A turn.

    Attributes:
        prompt_ids: (P,) prompt.
        response_ids: (R,) response.
        advantage: One number for all its tokens, as GRPO has it.
        noise: (R,) nats between the old and the initial policy, and the current one.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    advantage: float
    noise: Nats


def ragged_rows(count: int, lengths: Lengths, vocabulary: int, seed: int = 0) -> list[RaggedRow]:
    """Return synthetic turns; the same arguments give the same ones."""
    rng = rng_of("ragged rows", seed, count)
    rows = []
    for _ in range(count):
        prompt = int(
            np.clip(rng.lognormal(np.log(lengths.prompt), lengths.spread), 2, lengths.longest_prompt)
        )
        response = int(
            np.clip(rng.lognormal(np.log(lengths.response), lengths.spread), 2, lengths.longest_response)
        )
        ids = rng.integers(3, vocabulary, prompt + response).tolist()
        noise = rng.normal(0.0, 0.05, response).astype(np.float32)
        rows.append(RaggedRow(ids[:prompt], ids[prompt:], float(rng.normal()), noise))
    return rows


def random_model(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocabulary: int,
    head_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Qwen3ForCausalLM:
    """Return a random Qwen3 model; the same arguments give the same weights on the same device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - heavy

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed_of("benchmark model", seed))
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(dtype)
            with torch.device(device):
                return Qwen3ForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(default)
