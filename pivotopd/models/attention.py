"""Attention for one-token steps over grouped heads, without copying keys and values for every query head.

Registered with transformers under :data:`NAME`; all but masked one-token steps go the stock ``sdpa`` way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "pivotopd_sdpa"


def use_grouped_steps(model: PreTrainedModel) -> None:
    """Let a model with ``sdpa`` attention take one-token steps the grouped way; others stay as they are."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415 - heavy
    from transformers.masking_utils import sdpa_mask  # noqa: PLC0415 - heavy

    AttentionInterface.register(NAME, grouped_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def grouped_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return (B, 1, query heads, D) attention of a step; the interface is that of transformers.

    The query heads that share a key/value head become the rows of one attention: (B, Hkv, G, D) queries
    against (B, Hkv, S, D) keys, under the same mask.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415 - heavy

    batch, heads, length, size = query.shape
    groups = heads // key.shape[1]
    if length != 1 or groups == 1 or attention_mask is None or attention_mask.shape[1] != 1:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    grouped = query.view(batch, key.shape[1], groups, size)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(batch, 1, heads, output.shape[-1]), None
