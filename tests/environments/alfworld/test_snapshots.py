"""Stored states: bytes that come back equal, and damage that is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld.games import task_of
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.problem import State
from pivotopd.environments.alfworld.snapshots import Snapshot, from_bytes, to_bytes
from pivotopd.errors import EnvironmentFault
from tests.environments.alfworld import rooms

names = st.text(max_size=8)
sets = st.frozensets(names, max_size=4)
pairs = st.frozensets(st.tuples(names, names), max_size=4)
states = st.builds(
    State, names, st.none() | names, pairs, pairs, sets, sets, sets, sets, sets, sets, pairs
)  # fmt: skip
snapshots = st.builds(
    Snapshot, names, names, st.sampled_from(["move", "put"]), states, st.integers(0, 99), names, st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(snapshots)
def test_a_snapshot_comes_back_equal_and_its_bytes_are_one(snapshot: Snapshot) -> None:
    data = to_bytes(snapshot)
    back = from_bytes(data, "here")
    assert back == snapshot
    assert to_bytes(back) == data
    assert [type(one) for one in back.state] == [type(one) for one in snapshot.state]
    assert data.isascii()


def played() -> bytes:
    env = NativeEnv()
    env.reset(task_of(rooms.game()))
    for action in ("go to fridge 1", "open fridge 1", "take apple 2 from fridge 1"):
        env.step(action)
    return env.dump()


GOOD = played()


def changed(path: list[str], value: Any) -> bytes:
    fields = json.loads(GOOD)
    at = fields
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(fields).encode()


def without(path: list[str]) -> bytes:
    fields = json.loads(GOOD)
    at = fields
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return json.dumps(fields).encode()


BAD = {
    "empty": b"",
    "no json": b"\x00\xff",
    "a list": b"[]",
    "a number": b"7",
    "cut": GOOD[:-20],
    "deep": b"[" * 100_000,
    "no state": without(["state"]),
    "no part": without(["state", "inside"]),
    "no turns": without(["turns"]),
    "another field": changed(["more"], 1),
    "another part": changed(["state", "more"], []),
    "state is text": changed(["state"], "x"),
    "turns are text": changed(["turns"], "3"),
    "turns are true": changed(["turns"], True),
    "turns are below 0": changed(["turns"], -1),
    "observation is a number": changed(["observation"], 3),
    "valid is a number": changed(["valid"], 1),
    "wording is unknown": changed(["wording"], "shove"),
    "task is null": changed(["task_id"], None),
    "location is a list": changed(["state", "location"], ["a"]),
    "location is null": changed(["state", "location"], None),
    "held is a number": changed(["state", "held"], 4),
    "opened is text": changed(["state", "opened"], "abc"),
    "opened holds numbers": changed(["state", "opened"], [1]),
    "opened holds pairs": changed(["state", "opened"], [["a", "b"]]),
    "inside holds text": changed(["state", "inside"], ["ab"]),
    "inside holds triples": changed(["state", "inside"], [["a", "b", "c"]]),
    "inside holds numbers": changed(["state", "inside"], [["a", 1]]),
    "inside is null": changed(["state", "inside"], None),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_bytes_are_told(name: str) -> None:
    with pytest.raises(EnvironmentFault, match="damaged") as caught:
        from_bytes(BAD[name], "game 7")
    assert (caught.value.where, caught.value.mend) == ("game 7", "rerun the rollout stage")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_told_or_gives_another_snapshot(at: int, byte: int) -> None:
    data = GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
    try:
        found = from_bytes(data, "here")
    except EnvironmentFault:
        return
    assert from_bytes(to_bytes(found), "here") == found


ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["ab", "\ud800", ""])
NAMES = st.sampled_from(["mug 1", "ab"])
MIXED = st.lists(NAMES, max_size=3) | st.lists(NAMES | ODD, max_size=3)
ANYTHING = st.one_of(
    MIXED,
    st.lists(MIXED, max_size=2),
    st.lists(MIXED | ODD, max_size=2),
    st.recursive(
        ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=4
    ),
)


def is_part(name: str, value: object) -> bool:
    """Tell whether a part of a state has the type that play gives it."""
    if not isinstance(value, frozenset):
        return (
            isinstance(value, str) if name == "location" else name == "held" and isinstance(value, str | None)
        )
    if name in {"inside", "object_at", "removed"}:
        return all(
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
            for pair in value
        )
    return name not in {"location", "held"} and all(isinstance(one, str) for one in value)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(State._fields), ANYTHING)
def test_a_part_with_any_value_is_told_or_is_names(name: str, value: object) -> None:
    data = changed(["state", name], value)
    try:
        found = from_bytes(data, "here")
    except EnvironmentFault:
        return
    assert all(map(is_part, State._fields, found.state))
    assert from_bytes(to_bytes(found), "here") == found
    kept = json.loads(to_bytes(found))["state"][name]
    assert kept == (
        sorted(json.loads(one) for one in {*map(json.dumps, value)}) if isinstance(value, list) else value
    )


def test_a_loaded_state_goes_on_as_the_first_did() -> None:
    task = task_of(rooms.game())
    one, other = NativeEnv(), NativeEnv()
    one.reset(task)
    other.load(task, GOOD)
    for action in ("go to fridge 1", "open fridge 1", "take apple 2 from fridge 1"):
        one.step(action)
    assert one.dump() == other.dump() == GOOD
    for action in ("go to shelf 1", "fly", "move apple 2 to shelf 1"):
        assert one.step(action) == other.step(action)
    assert one.dump() == other.dump()
