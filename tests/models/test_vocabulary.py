from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import ConfigError
from pivotopd.models.vocabulary import check_ids

ROWS = st.lists(st.lists(st.integers(-2, 12), max_size=5), max_size=5)


@given(ROWS)
def test_the_first_id_that_is_none_is_named_with_its_request(rows: list[list[int]]) -> None:
    bad = [(row, id_) for row, ids in enumerate(rows) for id_ in ids if not 0 <= id_ < 10]
    if not bad:
        check_ids(rows, 10)
        return
    row, id_ = bad[0]
    with pytest.raises(ConfigError, match=f"token id {id_} is not in the vocabulary") as error:
        check_ids(rows, 10)
    assert error.value.where == f"request {row}"
