"""Seconds that a token takes to decode, for some sequences at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM


class Settles(Protocol):
    """A device that work can be waited for on."""

    name: str

    def settle(self) -> None:
        """Wait until all work is done."""
        ...


def decode_seconds(
    model: Qwen3ForCausalLM, sequences: int, tokens: int, prompt_tokens: int, device: Settles
) -> float:
    """Return the seconds of a decoding step: one token for each of some sequences.

    Args:
        model: The model.
        sequences: Sequences at once, all of one length.
        tokens: Steps that are timed, after two that are not.
        prompt_tokens: Tokens of each prompt.
        device: Where the model is.
    """
    from transformers import DynamicCache  # noqa: PLC0415 - heavy

    ids = torch.arange(sequences * prompt_tokens, device=device.name).view(sequences, prompt_tokens)
    ids = ids % (model.config.vocab_size - 3) + 3
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        start = 0.0
        for step in range(tokens + 2):
            if step == 2:
                device.settle()
                start = time.perf_counter()
            following = logits[:, -1].argmax(dim=-1, keepdim=True)
            logits = model(input_ids=following, past_key_values=cache, use_cache=True).logits
        device.settle()
    return (time.perf_counter() - start) / tokens
