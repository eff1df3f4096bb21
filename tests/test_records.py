"""Every table survives the way to Arrow and back; every schema that is not ours is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.errors import ArtifactError
from pivotopd.records import (
    Chain,
    Episode,
    Label,
    Record,
    Turn,
    check_schema,
    from_table,
    schema_of,
    to_table,
)

RECORDS = list(get_args(Record))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SINGLE = st.floats(width=32, allow_nan=False)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.lists(values_of(kind.value_type), max_size=4)
    return {
        pa.int32(): st.integers(-(2**31), 2**31 - 1),
        pa.int64(): st.integers(-(2**63), 2**63 - 1),
        pa.float32(): SINGLE,
        pa.float64(): st.floats(allow_nan=False),
        pa.string(): TEXT,
        pa.bool_(): st.booleans(),
        pa.binary(): st.binary(max_size=8),
    }[kind]


def rows_of(record: type[Any]) -> st.SearchStrategy[Any]:
    columns = {}
    for item in dataclasses.fields(record):
        values = values_of(item.metadata["arrow"])
        columns[item.name] = st.none() | values if item.metadata["nullable"] else values
    return st.builds(record, **columns)


def chain(**changes: Any) -> Chain:
    base = Chain(
        run="r", iteration=3, episode="e1", pivot_turn=2, accepted=1, stopped="no_action", detail=None
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.TABLE)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_survive_arrow(record: type[Any], data: st.DataObject) -> None:
    rows = data.draw(st.lists(rows_of(record), max_size=4))
    assert from_table(record, to_table(record, rows), "here") == rows


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.TABLE)
def test_every_column_is_typed_and_explained(record: type[Any]) -> None:
    schema = schema_of(record)
    assert schema.metadata == {b"table": record.TABLE.encode(), b"version": str(record.VERSION).encode()}
    assert schema.names == [item.name for item in dataclasses.fields(record)]
    assert all(field.metadata[b"doc"] for field in schema)


def test_table_names_are_distinct() -> None:
    assert len({record.TABLE for record in RECORDS}) == len(RECORDS) == 19


def test_token_ids_are_int32() -> None:
    schema = schema_of(Turn)
    for name in ("prompt_ids", "response_ids", "hinted_prompt_ids"):
        assert schema.field(name).type.value_type == pa.int32()


def test_empty_list_and_null_differ() -> None:
    rows = [
        Label(
            "r",
            0,
            "e",
            1,
            "go",
            None,
            [],
            "look",
            False,
            "unresolved",
            None,
            None,
            "oracle",
        )
    ]
    back = from_table(Label, to_table(Label, rows), "here")
    assert back[0].accepted_actions == []
    assert back[0].gold_action is None


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"iteration": 2**31}, "iteration"),
        ({"iteration": "three"}, "iteration"),
        ({"episode": 7}, "episode"),
        ({"accepted": None}, "accepted"),
    ],
)
def test_a_value_that_does_not_fit_is_named(changes: dict[str, Any], column: str) -> None:
    with pytest.raises(ArtifactError, match=f"column '{column}' of table chains"):
        to_table(Chain, [chain(**changes)])


def test_another_table_is_refused() -> None:
    with pytest.raises(ArtifactError, match="expected table 'episodes', found 'chains'"):
        check_schema(Episode, schema_of(Chain), "here")


def test_no_metadata_is_refused() -> None:
    with pytest.raises(ArtifactError, match="found None"):
        check_schema(Chain, schema_of(Chain).remove_metadata(), "here")


def test_a_newer_version_is_refused() -> None:
    newer = schema_of(Chain).with_metadata({"table": "chains", "version": "2"})
    with pytest.raises(ArtifactError, match="schema version 2, this program reads 1") as caught:
        check_schema(Chain, newer, "runs/x")
    assert caught.value.where == "runs/x"
    assert caught.value.mend


def test_an_extra_column_is_refused() -> None:
    extra = schema_of(Chain).append(pa.field("surprise", pa.string()))
    with pytest.raises(ArtifactError, match=r"missing \[\], extra \['surprise'\]"):
        check_schema(Chain, extra, "here")


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"missing \['run'\], extra \[\]"):
        check_schema(Chain, schema_of(Chain).remove(0), "here")


def test_a_wrong_type_is_refused() -> None:
    schema = schema_of(Chain)
    wrong = schema.set(schema.get_field_index("accepted"), pa.field("accepted", pa.int64(), nullable=False))
    with pytest.raises(ArtifactError, match="'accepted' of table chains is int64, expected int32"):
        check_schema(Chain, wrong, "here")


def test_nulls_in_a_required_column_are_refused() -> None:
    table = to_table(Chain, [chain()])
    index = table.schema.get_field_index("stopped")
    field = table.schema.field(index)
    holed = table.set_column(index, field, pa.array([None], type=pa.string()))
    with pytest.raises(ArtifactError, match="column 'stopped' of table chains holds nulls"):
        from_table(Chain, holed, "here")
