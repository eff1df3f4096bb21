"""Tokens drawn by inverse distribution function from uniforms that belong to the request alone.

Legend: B rows, T longest response, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pivotopd.seeds import rng_of


def uniforms_of(seeds: Sequence[int], count: int) -> Tensor:
    """Return (B, T) float64 uniforms in [0, 1), row b made of seed b only."""
    rows = [rng_of("response tokens", seed).random(count) for seed in seeds]
    return torch.from_numpy(np.stack(rows) if rows else np.zeros((0, count)))


def draw(logits: Tensor, temperature: float, uniforms: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one token a row, and give its log-probability over the full vocabulary.

    Sums are in float64, so that a vocabulary of any size leaves the draw exact to far below one token's
    probability.

    Args:
        logits: (B, V).
        temperature: Divides the logits; 0 takes the largest and scores it at temperature 1.
        uniforms: (B,) float64 in [0, 1); unused at temperature 0.

    Returns:
        (B,) int64 tokens and (B,) float32 log-probabilities; a row whose logits hold NaN or +inf, or nothing
        finite, has a log-probability that is not finite.
    """
    scaled = logits.double()
    if temperature:
        scaled = scaled / temperature
    top = scaled.amax(dim=-1, keepdim=True)
    weights = torch.exp(scaled - top)
    if temperature and uniforms is not None:
        cumulative = weights.cumsum(dim=-1)
        total = cumulative[:, -1:]
        # The first token whose cumulative weight passes the mark; it has a weight above 0.
        tokens = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    else:
        total = weights.sum(dim=-1, keepdim=True)
        tokens = scaled.argmax(dim=-1, keepdim=True)
    logprobs = scaled.gather(1, tokens) - top - total.log()
    return tokens.squeeze(1), logprobs.squeeze(1).float()
