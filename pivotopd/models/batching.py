"""Rows of different lengths packed into right-padded micro-batches of bounded size.

Legend: B rows of a batch, L tokens of its longest row, N response tokens of all its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pivotopd.errors import ArtifactError, ConfigError


class Row(Protocol):
    """Anything with a prompt and a response: a score request, a turn."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Token ids of the prompt."""

    @property
    def response_ids(self) -> Sequence[int]:
        """Token ids of the response."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """A right-padded micro-batch, with the places of its response tokens.

    The N response tokens lie flat: row by row as in ``rows``, token by token. Padding is a matter of lengths,
    never of ids, because many tokenizers pad with their end token.

    Attributes:
        input_ids: (B, L) int64, prompt and response of each row; padding holds id 0.
        attention_mask: (B, L) int64, 1 on tokens, 0 on padding.
        position_ids: (B, L) int64, 0, 1, 2, ... in every row.
        response_positions: (N,) int64, flat index into B*L of the position that predicts each response token,
            which is the position of the token before it.
        targets: (N,) int64, the response tokens.
        rows: Index of each row in the sequence that was batched.
        response_lengths: Response tokens of each row; their sum is N.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_positions: Tensor
    targets: Tensor
    rows: tuple[int, ...]
    response_lengths: tuple[int, ...]

    @property
    def computed_tokens(self) -> int:
        """Positions that a forward pass computes, padding included: B*L."""
        return self.input_ids.numel()

    @property
    def padded_tokens(self) -> int:
        """Positions that are padding."""
        return self.computed_tokens - int(self.attention_mask.sum())

    def to(self, device: torch.device | str) -> TokenBatch:
        """Return the same batch with its tensors on a device."""
        return TokenBatch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.position_ids.to(device),
            self.response_positions.to(device),
            self.targets.to(device),
            self.rows,
            self.response_lengths,
        )

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Split (N, ...) values into one tensor a row, in the order of ``rows``."""
        return torch.split(flat, list(self.response_lengths))

    def join(self, values: Sequence[Sequence[float]], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return (N,) values of this batch, taken from per-row values of the whole batched sequence.

        Args:
            values: One sequence a row of what was batched, each as long as that row's response.
            dtype: Type of the result.

        Raises:
            ArtifactError: A row's values are not as many as its response tokens.
        """
        for row, length in zip(self.rows, self.response_lengths, strict=True):
            if len(values[row]) != length:
                raise ArtifactError(
                    f"row {row} has {len(values[row])} values for {length} response tokens",
                    mend="rerun the stage that wrote them",
                )
        flat = np.concatenate([np.asarray(values[row], dtype=np.float64) for row in self.rows])
        return torch.from_numpy(flat).to(self.targets.device, dtype)


def pack_rows(rows: Sequence[Row], indices: Sequence[int]) -> TokenBatch:
    """Build the batch of the given rows, in the given order.

    Raises:
        ArtifactError: A prompt is empty, so that nothing predicts its first response token.
    """
    lengths = [len(rows[index].prompt_ids) + len(rows[index].response_ids) for index in indices]
    longest = max(lengths)
    input_ids = np.zeros((len(indices), longest), dtype=np.int64)
    positions: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    targets: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for place, index in enumerate(indices):
        prompt = np.asarray(rows[index].prompt_ids, dtype=np.int64)
        response = np.asarray(rows[index].response_ids, dtype=np.int64)
        if not len(prompt):
            raise ArtifactError(f"row {index} has an empty prompt", mend="a prompt needs at least one token")
        input_ids[place, : len(prompt)] = prompt
        input_ids[place, len(prompt) : lengths[place]] = response
        positions.append(place * longest + len(prompt) - 1 + np.arange(len(response), dtype=np.int64))
        targets.append(response)
    mask = np.arange(longest)[None, :] < np.asarray(lengths)[:, None]
    return TokenBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(mask.astype(np.int64)),
        position_ids=torch.arange(longest).expand(len(indices), longest),
        response_positions=torch.from_numpy(np.concatenate(positions)),
        targets=torch.from_numpy(np.concatenate(targets)),
        rows=tuple(indices),
        response_lengths=tuple(len(response) for response in targets),
    )


def micro_batches(rows: Sequence[Row], token_budget: int) -> list[TokenBatch]:
    """Pack rows, sorted by total length, into batches of at most ``token_budget`` positions.

    Padding counts towards the budget. A single row longer than the budget is a batch of its own, and is
    never cut.

    Args:
        rows: Rows with prompt and response ids.
        token_budget: Most positions (B*L) of a batch.

    Raises:
        ConfigError: The budget is below 1.
        ArtifactError: A row has an empty prompt.
    """
    if token_budget < 1:
        raise ConfigError(f"the token budget is {token_budget}", mend="set update.micro_batch_tokens >= 1")
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    batches: list[TokenBatch] = []
    group: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: (lengths[index], index)):
        # Lengths ascend, so the new row would be the longest of the group.
        if group and (len(group) + 1) * lengths[index] > token_budget:
            batches.append(pack_rows(rows, group))
            group = []
        group.append(index)
    if group:
        batches.append(pack_rows(rows, group))
    return batches
