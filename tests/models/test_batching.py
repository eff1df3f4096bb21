from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.models.base import ScoreRequest
from pivotopd.models.batching import join_rows, micro_batches, pack_rows

rows_of = st.lists(
    st.builds(
        ScoreRequest,
        prompt_ids=st.lists(st.integers(1, 99), min_size=1, max_size=12),
        response_ids=st.lists(st.integers(1, 99), max_size=8),
    ),
    max_size=20,
)


def test_pack_by_hand() -> None:
    batch = pack_rows([ScoreRequest([5, 6], [7, 8]), ScoreRequest([9], [10])], [1, 0])
    assert batch.input_ids.tolist() == [[9, 10, 0, 0], [5, 6, 7, 8]]
    assert batch.attention_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    # 10 is predicted at row 0 position 0; 7 and 8 at row 1 positions 1 and 2.
    assert batch.response_positions.tolist() == [0, 5, 6]
    assert batch.targets.tolist() == [10, 7, 8]
    assert (batch.rows, batch.response_lengths) == ((1, 0), (1, 2))
    assert (batch.computed_tokens, batch.padded_tokens) == (8, 2)


def test_joined_by_hand() -> None:
    batch = join_rows([ScoreRequest([5, 6], [7, 8]), ScoreRequest([9], [10])], [1, 0])
    assert batch.input_ids.tolist() == [[9, 10, 5, 6, 7, 8]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 3]]
    assert batch.response_positions.tolist() == [0, 3, 4]
    assert batch.targets.tolist() == [10, 7, 8]
    assert (batch.rows, batch.response_lengths, batch.row_ends) == ((1, 0), (1, 2), (2, 6))
    assert (batch.computed_tokens, batch.padded_tokens) == (6, 0)
    assert batch.to("cpu").row_ends == (2, 6)


@given(rows_of, st.integers(1, 60))
def test_packed_batches_hold_every_row_once_without_padding(rows: list[ScoreRequest], budget: int) -> None:
    batches = micro_batches(rows, budget, packed=True)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(rows)))
    for batch in batches:
        assert batch.padded_tokens == 0
        assert batch.computed_tokens <= budget or len(batch.rows) == 1
        ends = batch.row_ends
        assert ends is not None
        for row, start, end in zip(batch.rows, (0, *ends), ends, strict=False):
            assert batch.input_ids[0, start:end].tolist() == [*rows[row].prompt_ids, *rows[row].response_ids]
        taken = [token for row in batch.rows for token in rows[row].response_ids]
        assert batch.targets.tolist() == taken
        assert batch.input_ids[0, batch.response_positions + 1].tolist() == taken if taken else True


@given(rows_of, st.integers(1, 60))
def test_every_token_is_kept_once_within_the_budget(rows: list[ScoreRequest], budget: int) -> None:
    batches = micro_batches(rows, budget)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(rows)))
    for batch in batches:
        assert batch.computed_tokens <= budget or len(batch.rows) == 1
        flat = batch.input_ids.flatten()
        # The token after each predicting position is the target.
        assert flat[batch.response_positions + 1].tolist() == batch.targets.tolist()
        for row, mask, ids, part in zip(
            batch.rows, batch.attention_mask, batch.input_ids, batch.split(batch.targets), strict=True
        ):
            whole = [*rows[row].prompt_ids, *rows[row].response_ids]
            assert ids[mask.bool()].tolist() == whole
            assert part.tolist() == list(rows[row].response_ids)


@given(rows_of.filter(bool), st.integers(1, 60))
def test_join_undoes_split(rows: list[ScoreRequest], budget: int) -> None:
    values = [[0.5 * token for token in row.response_ids] for row in rows]
    for batch in micro_batches(rows, budget):
        flat = batch.join(values)
        assert flat.dtype == torch.float32
        assert flat.tolist() == [0.5 * token for token in batch.targets.tolist()]
        parts = [part.tolist() for part in batch.split(flat)]
        assert parts == [values[row] for row in batch.rows]


def test_rows_of_like_length_share_a_batch() -> None:
    rows = [ScoreRequest([1] * length, [2]) for length in (9, 1, 9, 1)]
    batches = micro_batches(rows, 20)
    assert [batch.rows for batch in batches] == [(1, 3), (0, 2)]
    assert sum(batch.padded_tokens for batch in batches) == 0


def test_bad_rows_are_named() -> None:
    with pytest.raises(ArtifactError, match="row 1 has an empty prompt"):
        micro_batches([ScoreRequest([1], [1]), ScoreRequest([], [1])], 10)
    with pytest.raises(ConfigError, match="token budget is 0"):
        micro_batches([], 0)
    batch = pack_rows([ScoreRequest([1], [1, 2])], [0])
    with pytest.raises(ArtifactError, match="row 0 has 1 values for 2"):
        batch.join([[0.5]])
