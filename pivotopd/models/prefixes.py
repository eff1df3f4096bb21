"""Rows whose prompts begin alike, as one sequence: what they share stands there once.

Prompts of one turn with and without a hint, of one episode, and of the episodes of one group begin alike.
Their rows become a pack of *branches*: a stem, and behind it each row's rest, which sees the stem and itself.
A rest begins with the prompt's last token at the latest, so each row has its own place that predicts its
first response token.

Which rows share a stem follows from their ids alone, never from the order in which they were given.

Legend: B rows, L tokens of a pack, N response tokens of its rows, P tokens of a stem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pivotopd.models.batching import Row, TokenBatch

SEGMENT_TOKENS: Final = 8
"""What one more piece of a sequence costs, its own call of the attention, in tokens of a forward pass."""

_Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Branches:
    """Rows that share the beginning of their prompts.

    Attributes:
        stem_tokens: Tokens that they share (P).
        rows: Their indices, in the order of their ids.
        tokens: Tokens that are computed: the stem once, and each row's rest.
    """

    stem_tokens: int
    rows: tuple[int, ...]
    tokens: int


def branches_of(rows: Sequence[Row], token_budget: int) -> tuple[list[Branches], list[int]]:
    """Return the rows that are better computed together, and the indices of all others.

    The rows are sorted by their ids, and the sorted list is cut where the fewest tokens remain: a piece of
    several rows costs its common stem once, each row's rest, and :data:`SEGMENT_TOKENS` for each of these.

    Args:
        rows: Rows with prompt and response ids.
        token_budget: Most tokens of a pack.

    Returns:
        Branches and the indices of rows that stay alone, each in the order of the rows' ids.
    """
    order, prompts = _sorted(rows)
    lengths = [len(rows[index].prompt_ids) + len(rows[index].response_ids) for index in order]
    common = [_common(one, other) for one, other in pairwise(prompts)]
    cheapest, begins = [0], [0]
    for end in range(1, len(order) + 1):
        best, begin = cheapest[end - 1] + lengths[end - 1], end - 1
        stem, whole = len(prompts[end - 1]), lengths[end - 1]
        for start in range(end - 2, -1, -1):
            stem, whole = min(stem, common[start]), whole + lengths[start]
            count = end - start
            tokens = whole - (count - 1) * stem
            if stem <= SEGMENT_TOKENS or tokens > token_budget:
                break
            cost = cheapest[start] + tokens + (count + 1) * SEGMENT_TOKENS
            if cost < best:
                best, begin = cost, start
        cheapest.append(best)
        begins.append(begin)
    return _cut(order, begins, common, lengths)


def _sorted(rows: Sequence[Row]) -> tuple[list[int], list[_Ids]]:
    """Return the rows' indices in the order of their ids, and their prompts in that order."""
    prompts = [np.asarray(row.prompt_ids, dtype=np.int32) for row in rows]

    def ids(index: int) -> tuple[bytes, bytes]:
        # big-endian bytes of ids that are not negative have the order of the ids
        response = np.asarray(rows[index].response_ids, dtype=">i4")
        return prompts[index].astype(">i4").tobytes(), response.tobytes()

    order = sorted(range(len(rows)), key=ids)
    return order, [prompts[index] for index in order]


def _common(one: _Ids, other: _Ids) -> int:
    """Return how many first tokens two prompts share, the last token of either left out."""
    length = max(0, min(len(one), len(other)) - 1)
    differs = (one[:length] != other[:length]).nonzero()[0]
    return int(differs[0]) if len(differs) else length


def _cut(
    order: list[int], begins: list[int], common: list[int], lengths: list[int]
) -> tuple[list[Branches], list[int]]:
    """Return the pieces of the cheapest cut, from each end's best beginning."""
    found: list[Branches] = []
    alone: list[int] = []
    end = len(order)
    while end:
        start = begins[end]
        if end - start == 1:
            alone.append(order[start])
        else:
            stem = min(common[start : end - 1])
            tokens = sum(lengths[start:end]) - (end - start - 1) * stem
            found.append(Branches(stem, tuple(order[start:end]), tokens))
        end = start
    return found[::-1], alone[::-1]


def branch_packs(rows: Sequence[Row], found: Sequence[Branches], token_budget: int) -> list[TokenBatch]:
    """Put branches, in their order, into packs of at most ``token_budget`` tokens."""
    packs: list[TokenBatch] = []
    group: list[Branches] = []
    for one in found:
        if group and sum(each.tokens for each in group) + one.tokens > token_budget:
            packs.append(_pack(rows, group))
            group = []
        group.append(one)
    if group:
        packs.append(_pack(rows, group))
    return packs


def _pack(rows: Sequence[Row], group: Sequence[Branches]) -> TokenBatch:
    """Return one sequence of L tokens: stem and rests of the first branches, then of the next ones."""
    ids: list[_Ids] = []
    places: list[npt.NDArray[np.int64]] = []
    predicting: list[npt.NDArray[np.int64]] = []
    ends: list[int] = []
    stems: list[tuple[int, int]] = []
    used = 0

    def add(tokens: _Ids, first: int, stem: tuple[int, int]) -> None:
        nonlocal used
        ids.append(tokens)
        places.append(np.arange(first, first + len(tokens), dtype=np.int64))
        used += len(tokens)
        ends.append(used)
        stems.append(stem)

    for one in group:
        size = one.stem_tokens
        add(np.asarray(rows[one.rows[0]].prompt_ids[:size], dtype=np.int32), 0, (0, 0))
        stem = (used - size, used)
        for index in one.rows:
            prompt = np.asarray(rows[index].prompt_ids, dtype=np.int32)
            response = np.asarray(rows[index].response_ids, dtype=np.int32)
            predicting.append(used + len(prompt) - size - 1 + np.arange(len(response), dtype=np.int64))
            add(np.concatenate([prompt[size:], response]), size, stem)
    indices = [index for one in group for index in one.rows]
    responses = [np.asarray(rows[index].response_ids, dtype=np.int64) for index in indices]
    return TokenBatch(
        input_ids=torch.from_numpy(np.concatenate(ids).astype(np.int64)[None, :]),
        attention_mask=torch.ones((1, used), dtype=torch.int64),
        position_ids=torch.from_numpy(np.concatenate(places)[None, :]),
        response_positions=torch.from_numpy(np.concatenate(predicting)),
        targets=torch.from_numpy(np.concatenate(responses)),
        rows=tuple(indices),
        response_lengths=tuple(map(len, responses)),
        row_ends=tuple(ends),
        stems=tuple(stems),
    )
