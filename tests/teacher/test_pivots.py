"""The pivot test, rule by rule (method reference 3.2, 3.3, 10)."""

from __future__ import annotations

from pivotopd.environments.alfworld.wording import make_wording
from pivotopd.records import Label, from_table, to_table
from pivotopd.teacher.base import Candidate, Reading
from pivotopd.teacher.pivots import labels_of
from tests.play import made_turn

TURNS = [
    made_turn(0, action="go to shelf 1"),
    made_turn(1, action="look"),
    made_turn(2, action="take mug 1 from shelf 1"),
    made_turn(3, action="look", committed=False),
]


def gold(turn: int, action: str | None, *accepted: str) -> Candidate:
    return Candidate(turn, action or "nonsense", action, accepted)


def labels(*candidates: Candidate, m: int = 5, lesson: str | None = None) -> list[Label]:
    reading = Reading(candidates, lesson, "prompt", "raw")
    return labels_of(reading, TURNS, make_wording("compact"), "someone", m)


def told(*candidates: Candidate, m: int = 5) -> list[tuple[int, str]]:
    return [(label.turn, label.reason) for label in labels(*candidates, m=m)]


def test_disagreement_is_pivotal_and_agreement_is_not() -> None:
    assert told(gold(0, "go to fridge 1"), gold(1, "look")) == [(0, "pivotal"), (1, "agrees")]
    assert [label.pivotal for label in labels(gold(0, "go to fridge 1"), gold(1, "look"))] == [True, False]


def test_actions_are_compared_in_normal_form() -> None:
    assert told(gold(0, "  GO  to\tshelf 1 "), gold(2, "take mug 1 from shelf 10")) == [
        (0, "agrees"),
        (2, "pivotal"),
    ]


def test_any_accepted_action_counts_as_agreement() -> None:
    both = gold(0, "go to fridge 1", "go to shelf 2", "Go to shelf 1", "go to fridge 1")
    (label,) = labels(both)
    assert (label.reason, label.pivotal) == ("agrees", False)
    assert label.accepted_actions == ["go to fridge 1", "go to shelf 2", "Go to shelf 1"]
    assert (label.gold_action, label.student_action) == ("go to fridge 1", "go to shelf 1")


def test_a_reply_without_an_action_is_a_mismatch_even_where_its_text_fits() -> None:
    assert told(gold(3, "look")) == [(3, "pivotal")]


def test_an_unresolved_candidate_is_kept_as_data_only() -> None:
    (label,) = labels(Candidate(1, "do the look", None, ("look",)))
    assert (label.reason, label.pivotal, label.gold_action) == ("unresolved", False, None)
    assert (label.gold_written, label.accepted_actions) == ("do the look", [])


def test_turns_that_do_not_exist_are_ignored_and_take_no_place() -> None:
    assert told(gold(-1, "look"), gold(4, "look"), gold(1, "go to shelf 1"), m=1) == [(1, "pivotal")]


def test_of_duplicates_the_first_counts_and_the_others_take_no_place() -> None:
    found = labels(gold(0, "go to fridge 1"), gold(0, "go to shelf 1"), gold(2, "look"), m=2)
    assert [(label.turn, label.gold_action) for label in found] == [(0, "go to fridge 1"), (2, "look")]
    assert told(gold(0, None), gold(0, "go to fridge 1")) == [(0, "unresolved")]


def test_the_first_m_of_the_teachers_order_are_kept_and_told_by_turn() -> None:
    four = [gold(3, "look"), gold(1, "go to shelf 1"), gold(0, "look"), gold(2, "look")]
    assert [turn for turn, _ in told(*four, m=2)] == [1, 3]
    assert [turn for turn, _ in told(*four, m=9)] == [0, 1, 2, 3]


def test_a_label_carries_all_that_the_teacher_said() -> None:
    reading = Candidate(1, "Go!", "go to shelf 1", ("go to shelf 2",), 4, 6)
    (label,) = labels(reading, lesson="Look first.")
    assert label == Label(
        run="test", iteration=2, episode="e", turn=1, gold_written="Go!", gold_action="go to shelf 1",
        accepted_actions=["go to shelf 1", "go to shelf 2"], student_action="look", pivotal=True,
        reason="pivotal", distance_before=4, distance_after=6, teacher="someone",
    )  # fmt: skip
    assert from_table(Label, to_table(Label, [label]), "here") == [label]


def test_nothing_said_is_no_label() -> None:
    assert labels() == []
    assert labels_of(Reading((gold(0, "look"),)), [], make_wording("compact"), "someone", 5) == []
