"""Figures of failures by hand, and tables with empty cells where there is nothing to measure."""

from __future__ import annotations

from pivotopd.diagnosis.failures import failures_part
from pivotopd.diagnosis.figures import Part, metrics
from pivotopd.records_diagnosis import EpisodeReading, TurnReading


def episode(name: str, kind: str, pivot: int | None = None, turns: int = 10) -> EpisodeReading:
    return EpisodeReading(
        run="r", iteration=0, episode=name, task="t", family="f", won=kind == "won", turns=turns, kind=kind,
        pivot_turn=pivot, oracle_action=None, pivots=int(pivot is not None),
        wasted_turns=None if pivot is None else turns - pivot - 1, distance_at_start=5,
    )  # fmt: skip


def turn(change: str, *, moved: bool = True, late: bool = False) -> TurnReading:
    return TurnReading(
        run="r", iteration=0, episode="e", turn=0, action="look", distance_before=3, distance_after=3,
        change=change, moved=moved, out_of_reach=late,
    )  # fmt: skip


def part(rows: list[EpisodeReading], turns: list[TurnReading] | None = None) -> Part:
    return failures_part(rows, turns or [], draws=100, seed=0)


def test_figures_by_hand() -> None:
    rows = [
        episode("a", "won"),
        episode("b", "won", 2),
        episode("c", "after_pivot", 3),
        episode("d", "after_pivot", 6),
        episode("e", "after_pivot", 4),
        episode("f", "no_pivot"),
        episode("g", "unjudged"),
        episode("h", "won"),
    ]
    turns = [turn("progress"), turn("neutral"), turn("neutral", moved=False, late=True), turn("dead")]
    found = metrics([part(rows, turns)])
    expected = {
        "failures/episodes": 8, "failures/failed": 5 / 8, "failures/after_pivot": 3 / 8,
        "failures/no_pivot": 1 / 8, "failures/won_with_pivot": 1 / 3, "failures/unjudged": 1,
        "failures/pivotal_share": 3 / 4, "failures/pivot_turn": 4, "failures/wasted_turns": 5,
        "turns/progress": 1 / 4, "turns/neutral": 2 / 4, "turns/neutral_moves": 1 / 4, "turns/regress": 0,
        "turns/dead": 1 / 4, "turns/unknown": 0, "turns/out_of_reach": 1 / 4,
    }  # fmt: skip
    assert {key: found[f"diagnose/{key}"] for key in expected} == expected
    assert found["diagnose/failures/failed/low"] < 5 / 8 < found["diagnose/failures/failed/high"]


def test_a_policy_that_never_fails() -> None:
    found = part([episode("a", "won"), episode("b", "won")], [turn("progress")])
    values = {one.key: one.value for one in found.figures}
    assert values["failures/failed"] == 0
    assert values["failures/pivotal_share"] is values["failures/pivot_turn"] is None
    assert values["failures/wasted_turns"] is None
    assert "The policy never failed, so no failure can hold a pivotal mistake." in found.notes
    assert "diagnose/failures/pivotal_share" not in metrics([found])


def test_a_policy_that_always_fails() -> None:
    found = part([episode("a", "no_pivot"), episode("b", "no_pivot")])
    values = {one.key: one.value for one in found.figures}
    assert values["failures/failed"] == 1
    assert values["failures/pivotal_share"] == 0
    assert values["failures/won_with_pivot"] is values["turns/progress"] is None
    assert found.notes[:2] == ("The policy never won.", "No failure holds a pivotal mistake.")


def test_nothing_at_all() -> None:
    found = part([])
    assert all(one.value in (None, 0) for one in found.figures)
    assert found.notes == ("No episode was played.",)
