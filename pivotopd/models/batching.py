"""Rows of different lengths in micro-batches of bounded size: right-padded, or packed without any padding.

A packed batch is one sequence: row behind row, position ids anew in each, and attention that never leaves a
row (:mod:`pivotopd.models.attention`).

Legend: B rows of a batch, L tokens of its longest row, N response tokens of all its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """A micro-batch, right-padded or packed, with the places of its response tokens.

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
        row_ends: For a packed batch, where B is 1 and L the tokens of all rows: each row's end in L; where
            rows share stems, the end of each stem and of each row's rest.
        stems: For each of these ends where its stem lies in L, (0, 0) where it has none; None where no row
            has one.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_positions: Tensor
    targets: Tensor
    rows: tuple[int, ...]
    response_lengths: tuple[int, ...]
    row_ends: tuple[int, ...] | None = None
    stems: tuple[tuple[int, int], ...] | None = None

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
            self.row_ends,
            self.stems,
        )

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Split (N, ...) values into one tensor a row, in the order of ``rows``."""
        return torch.split(flat, list(self.response_lengths))

    def spread(self, copies: Sequence[Sequence[int]]) -> tuple[TokenBatch, Tensor]:
        """Return the same batch told of every copy of its rows, and where each copy's values are.

        Its ids and places stay those of one copy: only :meth:`join` and :meth:`split` may be asked of it.

        Args:
            copies: For each row of what was batched the indices that its copies have elsewhere.

        Returns:
            The batch, and (N',) int64 indices into the N values of this one.
        """
        lengths = np.asarray(self.response_lengths, dtype=np.int64)
        ends = np.cumsum(lengths)
        places = [
            np.tile(np.arange(end - length, end), len(copies[row]))
            for row, length, end in zip(self.rows, lengths, ends, strict=True)
        ]
        told = replace(
            self,
            rows=tuple(copy for row in self.rows for copy in copies[row]),
            response_lengths=tuple(
                length
                for row, length in zip(self.rows, self.response_lengths, strict=True)
                for _ in copies[row]
            ),
        )
        return told, torch.from_numpy(np.concatenate(places)).to(self.targets.device)

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
    """Build the right-padded batch of the given rows, in the given order.

    Raises:
        ArtifactError: A prompt is empty, so that nothing predicts its first response token.
    """
    lengths = _lengths(rows, indices)
    longest = max(lengths)
    starts = longest * np.arange(len(indices), dtype=np.int64)
    input_ids, positions, targets = _laid_out(rows, indices, starts, len(indices) * longest)
    mask = np.arange(longest)[None, :] < np.asarray(lengths)[:, None]
    return TokenBatch(
        input_ids=torch.from_numpy(input_ids.reshape(len(indices), longest)),
        attention_mask=torch.from_numpy(mask.astype(np.int64)),
        position_ids=torch.arange(longest).expand(len(indices), longest),
        response_positions=torch.from_numpy(positions),
        targets=torch.from_numpy(targets),
        rows=tuple(indices),
        response_lengths=tuple(len(rows[index].response_ids) for index in indices),
    )


def join_rows(rows: Sequence[Row], indices: Sequence[int]) -> TokenBatch:
    """Build the packed batch of the given rows, in the given order: one sequence, nothing between rows.

    Raises:
        ArtifactError: A prompt is empty, so that nothing predicts its first response token.
    """
    lengths = _lengths(rows, indices)
    ends = np.cumsum(lengths, dtype=np.int64)
    input_ids, positions, targets = _laid_out(rows, indices, ends - lengths, int(ends[-1]))
    return TokenBatch(
        input_ids=torch.from_numpy(input_ids[None, :]),
        attention_mask=torch.ones((1, len(input_ids)), dtype=torch.int64),
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None, :],
        response_positions=torch.from_numpy(positions),
        targets=torch.from_numpy(targets),
        rows=tuple(indices),
        response_lengths=tuple(len(rows[index].response_ids) for index in indices),
        row_ends=tuple(ends.tolist()),
    )


def _lengths(rows: Sequence[Row], indices: Sequence[int]) -> list[int]:
    return [len(rows[index].prompt_ids) + len(rows[index].response_ids) for index in indices]


_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


def _laid_out(
    rows: Sequence[Row], indices: Sequence[int], starts: _Ids, size: int
) -> tuple[_Ids, _Ids, _Ids]:
    """Return flat ids with each row at its start, the places that predict responses, and those responses."""
    input_ids = np.zeros(size, dtype=np.int64)
    positions: list[_Ids] = []
    targets: list[_Ids] = []
    for start, index in zip(starts.tolist(), indices, strict=True):
        prompt = np.asarray(rows[index].prompt_ids, dtype=np.int64)
        response = np.asarray(rows[index].response_ids, dtype=np.int64)
        if not len(prompt):
            raise ArtifactError(f"row {index} has an empty prompt", mend="a prompt needs at least one token")
        middle = start + len(prompt)
        input_ids[start:middle] = prompt
        input_ids[middle : middle + len(response)] = response
        positions.append(middle - 1 + np.arange(len(response), dtype=np.int64))
        targets.append(response)
    return input_ids, np.concatenate(positions), np.concatenate(targets)


def micro_batches(
    rows: Sequence[Row], token_budget: int, *, packed: bool = False, indices: Sequence[int] | None = None
) -> list[TokenBatch]:
    """Put rows, sorted by total length, into batches of at most ``token_budget`` positions.

    Padding counts towards the budget. A single row longer than the budget is a batch of its own, and is
    never cut.

    Args:
        rows: Rows with prompt and response ids.
        token_budget: Most positions (B*L) of a batch.
        packed: Without padding, instead of right-padded.
        indices: The rows that are wanted; of equal length the first ones come first. None for all.

    Raises:
        ConfigError: The budget is below 1.
        ArtifactError: A row has an empty prompt.
    """
    if token_budget < 1:
        raise ConfigError(f"the token budget is {token_budget}", mend="set update.micro_batch_tokens >= 1")
    build = join_rows if packed else pack_rows
    lengths = _lengths(rows, range(len(rows)))
    batches: list[TokenBatch] = []
    group: list[int] = []
    used = 0
    for index in sorted(range(len(rows)) if indices is None else indices, key=lambda index: lengths[index]):
        # Lengths ascend, so the new row would be the longest of a padded group.
        needed = used + lengths[index] if packed else (len(group) + 1) * lengths[index]
        if group and needed > token_budget:
            batches.append(build(rows, group))
            group, used = [], 0
        group.append(index)
        used += lengths[index]
    if group:
        batches.append(build(rows, group))
    return batches
