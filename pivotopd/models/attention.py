"""Our attention: one-token steps over grouped heads, and packed rows; all else goes the stock ``sdpa`` way.

Registered with transformers under :data:`NAME`.

- A one-token step does not copy keys and values for every query head.
- Packed rows lie in one sequence. What every model hands to its attention is the mask, so the rows' ends
  travel in its place (:func:`packed_mask`): each row is then attended to by itself, causally, by the fastest
  kernel of the device. Nothing of the size (L, L) is made, and no flop is spent between rows.
- Rows that share a stem (:mod:`pivotopd.models.prefixes`): the rest of each sees the stem, then itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pivotopd.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "pivotopd_sdpa"
_ENDS = torch.int32
"""Type of a mask that holds rows' ends; no mask of transformers has it."""


def use_grouped_steps(model: PreTrainedModel) -> None:
    """Let a model with ``sdpa`` attention take ours; others stay as they are."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415 - heavy
    from transformers.masking_utils import sdpa_mask  # noqa: PLC0415 - heavy

    AttentionInterface.register(NAME, grouped_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def packed_mask(row_ends: Sequence[int], stems: Sequence[tuple[int, int]] | None = None) -> Tensor:
    """Return what to give a model as mask for packed rows.

    It has four axes, (1, 1, 1 or 3, rows), because transformers leaves such a mask as it is; and it stays in
    main memory, so that no layer waits for the device to read it.

    Args:
        row_ends: Each row's end in the sequence, ascending.
        stems: Where what each row goes on from lies in the sequence; an empty place for none.
    """
    lines = [row_ends] if stems is None else [row_ends, *zip(*stems, strict=True)]
    return torch.tensor(lines, dtype=_ENDS)[None, None]


def can_branch(model: PreTrainedModel) -> bool:
    """Tell whether rows may share a stem: attention is ours, and each layer sees all that came before."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    whole = kinds == {"full_attention"} and getattr(config, "sliding_window", None) is None
    return config._attn_implementation == NAME and whole


def check_packs(model: PreTrainedModel) -> None:
    """Refuse a model whose attention is not ours.

    Raises:
        ConfigError: Its rows would see each other when packed.
    """
    if model.config._attn_implementation != NAME:
        raise ConfigError(
            f"the model's attention is {model.config._attn_implementation}, which knows no packed rows",
            where="update.packing",
            mend="set update.packing=false, or load the model with sdpa attention",
        )


def grouped_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return (B, L, query heads, D) attention; the interface is that of transformers.

    In a one-token step the query heads that share a key/value head become the rows of one attention:
    (B, Hkv, G, D) queries against (B, Hkv, S, D) keys, under the same mask.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415 - heavy

    if attention_mask is not None and attention_mask.dtype == _ENDS:
        ends, *stems = attention_mask[0, 0].tolist()
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        rows = zip(*(torch.split(one, sizes, dim=2) for one in (query, key, value)), strict=True)
        places = zip(*stems, strict=True) if stems else [(0, 0)] * len(ends)
        done = []
        for row, (first, last) in zip(rows, places, strict=True):
            mask, seen = None, row
            if last > first:
                mask = _after_stem(row[0], last - first)
                before = (one[:, :, first:last] for one in (key, value))
                seen = (row[0], *(torch.cat(both, dim=2) for both in zip(before, row[1:], strict=True)))
            settings = {**kwargs, "is_causal": mask is None}
            done.append(sdpa_attention_forward(module, *seen, mask, scaling=scaling, **settings)[0])
        return torch.cat(done, dim=1), None
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


def _after_stem(query: Tensor, stem: int) -> Tensor:
    """Return the (L, stem + L) mask of a rest: True for the stem and for what is not later in the rest."""
    length = query.shape[2]
    return torch.ones((length, stem + length), dtype=torch.bool, device=query.device).tril_(stem)
