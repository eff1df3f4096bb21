from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.models.base import ScoreRequest
from pivotopd.models.repeats import repeats_of, tokens_of


def test_by_hand() -> None:
    found = repeats_of(["a", "b", "a", "c", "b", "a"])
    assert found.firsts == (0, 1, 3)
    assert found.kinds == (0, 1, 0, 2, 1, 0)
    assert found.later == [2, 4, 5]
    assert found.groups == [[0, 2, 5], [1, 4], [3]]
    assert found.any
    assert not repeats_of(["a", "b"]).any
    assert repeats_of([]).groups == []


@given(st.lists(st.integers(0, 4)))
def test_every_row_finds_an_equal_first_one(keys: list[int]) -> None:
    found = repeats_of(keys)
    assert [keys[found.firsts[kind]] for kind in found.kinds] == keys
    assert len({keys[first] for first in found.firsts}) == len(found.firsts)
    assert list(found.firsts) == sorted(found.firsts)
    assert sorted(index for group in found.groups for index in group) == list(range(len(keys)))
    assert len(found.later) + len(found.firsts) == len(keys)


def test_where_a_prompt_ends_is_part_of_a_row() -> None:
    keys: list[Hashable] = [tokens_of(ScoreRequest(*parts)) for parts in (([1, 2], [3]), ([1], [2, 3]))]
    assert keys[0] != keys[1]
    assert keys[0] == tokens_of(ScoreRequest(np.array([1, 2]), np.array([3], np.int32)))
