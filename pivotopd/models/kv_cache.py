"""A key/value cache in which the slot of a token is its position in its row.

Rows need no left padding: prompts are prefilled right padded, and each new token of a row overwrites the
padding after it. A mask hides what lies behind a row's last token. So a row can be filled anew at any time.

Legend: B rows, H key/value heads, L tokens of a prefill, S slots, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROW_SLOTS = 64


class SlotCache:
    """Keys and values of all layers, in the interface that transformers models call.

    After ``start_prefill`` a forward of right-padded prompts fills rows from slot 0. After ``start_step`` a
    forward of one token a row fills the slot of its position.

    Args:
        rows: B.
        slots: Initial S; both grow when needed.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self, rows: int, slots: int) -> None:
        self.rows, self.slots = rows, slots
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._prefill: Tensor | None = None
        self._positions: Tensor | None = None
        self._index: Tensor | None = None
        self._used = 0

    def start_prefill(self, rows: Tensor) -> None:
        """Let the next forward fill the rows at (B',) indices from slot 0; attention stays inside it."""
        self._prefill = rows

    def start_step(self, positions: Tensor, used: int) -> None:
        """Let the next forward put one token a row into the slot of its position.

        Args:
            positions: (B,) int64.
            used: Slots that the longest row has used, the new one included; attention sees that many.
        """
        self._prefill = None
        self._positions, self._used = positions, used
        self._index = torch.arange(len(positions), device=positions.device)
        if used > self.slots:
            self.reserve(self.rows, used + GROW_SLOTS)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive (B, 1, 1, used) mask of a step: 0 up to each row's position, then very low."""
        if self._positions is None:
            raise RuntimeError("mask() before start_step()")
        slots = torch.arange(self._used, device=self._positions.device)
        hidden = slots[None, :] > self._positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None, None, :]

    def reserve(self, rows: int, slots: int) -> None:
        """Have room for at least so many rows and slots; new ones hold nothing."""
        more_rows, more_slots = max(0, rows - self.rows), max(0, slots - self.slots)
        if not (more_rows or more_slots):
            return
        self.rows, self.slots = self.rows + more_rows, self.slots + more_slots
        for store in (self.keys, self.values):
            for layer, buffer in store.items():
                store[layer] = torch.nn.functional.pad(buffer, (0, 0, 0, more_slots, 0, 0, 0, more_rows))

    def copy(self, source: Tensor, target: Tensor, slots: int) -> None:
        """Give (B',) rows the first slots of as many others."""
        for store in (self.keys, self.values):
            for buffer in store.values():
                buffer[target, :, :slots] = buffer[source, :, :slots]

    def keep(self, rows: Tensor) -> None:
        """Have only the rows at the given (B',) indices, in that order."""
        self.rows = len(rows)
        for store in (self.keys, self.values):
            for layer, buffer in store.items():
                store[layer] = buffer.index_select(0, rows)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store (B, H, L, D) states and return what attention sees; called by the model."""
        if layer_idx not in self.keys:
            self.keys[layer_idx] = self._buffer(key_states)
            self.values[layer_idx] = self._buffer(value_states)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self._prefill is not None:
            length = key_states.shape[2]
            keys[self._prefill, :, :length] = key_states
            values[self._prefill, :, :length] = value_states
            return key_states, value_states
        keys[self._index, :, self._positions] = key_states[:, :, 0]
        values[self._index, :, self._positions] = value_states[:, :, 0]
        return keys[:, :, : self._used], values[:, :, : self._used]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always given, and a prefill starts a row; called by the model."""
        del layer_idx
        return 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return key length and offset of a prefill's mask; called by the model."""
        del layer_idx
        return query_length, 0

    def _buffer(self, states: Tensor) -> Tensor:
        # Zeros, not garbage: a hidden slot still meets the softmax's weight 0, and 0 * NaN is NaN.
        return states.new_zeros(self.rows, states.shape[1], self.slots, states.shape[3])
