from __future__ import annotations

import pytest
import torch

from pivotopd.models.attention import grouped_sdpa
from pivotopd.models.kv_cache import GROW_SLOTS, SlotCache


def _states(*values: float) -> torch.Tensor:
    """One head of size 1; a row of tokens a value."""
    return torch.tensor(values).view(len(values), 1, 1, 1)


def test_a_step_overwrites_padding_at_each_row_s_own_position() -> None:
    cache = SlotCache(rows=2, slots=4)
    prompts = torch.tensor([[1.0, 9.0], [2.0, 3.0]]).view(2, 1, 2, 1)
    cache.start_prefill(torch.tensor([0, 1]))
    seen, _ = cache.update(prompts, prompts, 0)
    assert seen is prompts
    cache.start_step(torch.tensor([1, 2]), used=3)
    keys, values = cache.update(_states(5.0, 6.0), _states(7.0, 8.0), 0)
    assert keys.flatten(1).tolist() == [[1, 5, 0], [2, 3, 6]]
    assert values.flatten(1).tolist() == [[1, 7, 0], [2, 3, 8]]
    low = torch.finfo(torch.float32).min
    assert cache.mask(torch.float32).tolist() == [[[[0, 0, low]]], [[[0, 0, 0]]]]


def test_rows_leave_and_slots_grow() -> None:
    cache = SlotCache(rows=3, slots=1)
    for row in range(3):
        cache.start_prefill(torch.tensor([row]))
        cache.update(_states(float(row)), _states(float(row)), 0)
    cache.keep(torch.tensor([2, 0]))
    cache.start_step(torch.tensor([1, 1]), used=2)
    assert cache.slots == 2 + GROW_SLOTS
    keys, _ = cache.update(_states(5.0, 6.0), _states(5.0, 6.0), 0)
    assert keys.flatten(1).tolist() == [[2, 5], [0, 6]]


def test_mask_needs_a_step() -> None:
    with pytest.raises(RuntimeError, match="start_step"):
        SlotCache(1, 1).mask(torch.float32)


def test_grouped_attention_equals_the_written_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    batch, heads, kv_heads, slots, size = 3, 6, 2, 5, 4
    query = torch.randn(batch, heads, 1, size, generator=generator)
    key, value = (torch.randn(batch, kv_heads, slots, size, generator=generator) for _ in range(2))
    hidden = torch.arange(slots)[None, :] > torch.tensor([4, 2, 0])[:, None]
    mask = torch.zeros(batch, 1, 1, slots).masked_fill(
        hidden[:, None, None, :], torch.finfo(torch.float32).min
    )
    output, _ = grouped_sdpa(torch.nn.Module(), query, key, value, mask, scaling=0.5)
    for row in range(batch):
        for head in range(heads):
            shared = head // 3
            scores = 0.5 * key[row, shared] @ query[row, head, 0] + mask[row, 0, 0]
            expected = scores.softmax(-1) @ value[row, shared]
            torch.testing.assert_close(output[row, 0, head], expected)
