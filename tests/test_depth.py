"""Schedules of depth, and the small text in which an update keeps what probes have found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.depth import Curriculum, Depth, Probes, Tail
from pivotopd.errors import ArtifactError
from pivotopd.methods.sections import GrpoMethod, TcodMethod, TurnOpdMethod


@given(st.none() | st.floats(0, 1e6), st.none() | st.integers(1, 10_000))
def test_a_stored_depth_comes_back(average: float | None, cap: int | None) -> None:
    depth = Depth(average, cap)
    assert Depth.from_json(depth.to_json(), "here") == depth


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"average_turns": 2.0}',
        '{"average_turns": 2.0, "cap_turns": 0}',
        '{"average_turns": 2.0, "cap_turns": true}',
        '{"average_turns": NaN, "cap_turns": 2}',
        '{"average_turns": "2", "cap_turns": 2}',
        '{"average_turns": 2.0, "cap_turns": 2, "more": 1}',
    ],
)
def test_another_text_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        Depth.from_json(text, "here")
    assert caught.value.where == "here"


def test_a_curriculum_grows_by_a_turn_every_few_iterations() -> None:
    cut = TcodMethod(iterations_per_turn=2, max_turns=3).depth_cut
    assert cut == Curriculum(2, 3)
    assert [cut.limit(iteration, Depth()) for iteration in range(8)] == [1, 1, 2, 2, 3, 3, 3, 3]
    assert cut.limit(0, Depth(9.0, 10)) == 1


def test_an_expert_leaves_one_more_turn_every_few_iterations() -> None:
    cut = TcodMethod(direction="b2f", iterations_per_turn=2, max_turns=3).depth_cut
    assert cut == Tail(2, 3)
    assert [cut.turns_at(iteration) for iteration in range(7)] == [1, 1, 2, 2, 3, 3, 3]
    assert cut.limit(0, Depth()) is None
    assert TcodMethod(direction="b2f").depth_cut == Tail(5, 30)
    assert TcodMethod().depth_cut == Curriculum(6, 30)


def test_probes_are_not_cut_but_only_turns_below_the_cap_train() -> None:
    cut = TurnOpdMethod(warm_up=2, probe_every=3, max_depth=9).depth_cut
    assert cut == Probes(2, 3, 9)
    found = Depth(3.4, 4)
    assert [cut.limit(iteration, found) for iteration in range(9)] == [
        None,
        None,
        None,
        4,
        4,
        None,
        4,
        4,
        None,
    ]
    assert [cut.cap(iteration, found) for iteration in range(4)] == [9, 9, 4, 4]
    assert cut.cap(2, Depth()) == 9, "no probe has been seen"
    assert cut.limit(3, Depth(30.0, 31)) == 9


def test_other_methods_do_not_cut() -> None:
    assert GrpoMethod().depth_cut is None
