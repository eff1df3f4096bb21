"""The report: every figure beside the published one, empty cells for what was not measured, plots as PNG."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pivotopd.diagnosis.figures import Figure, Part, from_json, measured, metrics, to_json
from pivotopd.diagnosis.plots import plot_failures, plot_interventions, plot_recovery
from pivotopd.diagnosis.report import Report, Subject, columns, markdown, rows, shown
from pivotopd.diagnosis.report import from_json as report_from_json
from pivotopd.diagnosis.report import to_json as report_to_json
from pivotopd.records_diagnosis import EpisodeReading, Recovery

SUBJECT = Subject("small", 2, "abc", "alfworld 1/move", "valid", "def", 0.4, 30, "123")
PART = Part(
    "interventions",
    "Interventions by replay",
    (
        Figure("interventions/none", "nothing", "share", 0.082, 0.038, 0.13, 72, "8.2 % [3.8, 13.0]"),
        Figure("interventions/at", "oracle | here", "share", None, count=0),
        Figure("interventions/turns", "turns", "turns", 9.66),
    ),
    ("A sentence.",),
)
START = {"interventions/none": Figure("interventions/none", "nothing", "share", 0.5)}


def test_a_part_survives_its_file() -> None:
    assert from_json(to_json(PART)) == PART
    report = Report(SUBJECT, (PART,), START)
    assert report_from_json(report_to_json(report)) == report


def test_metrics_hold_what_was_measured() -> None:
    assert metrics([PART]) == {
        "diagnose/interventions/none": 0.082,
        "diagnose/interventions/none/low": 0.038,
        "diagnose/interventions/none/high": 0.13,
        "diagnose/interventions/turns": 9.66,
    }
    assert measured("a", "b", "share", None, published="5 %") == Figure(
        "a", "b", "share", None, count=0, published="5 %"
    )


def test_the_table_has_the_start_policy_where_it_is_another_one() -> None:
    alone = Report(SUBJECT, (PART,), {})
    assert columns(alone, PART) == ("", "this policy", "95 % interval", "over", "published (other models)")
    assert rows(alone, PART)[0] == ("nothing", "8.2 %", "3.8 % to 13.0 %", "72", "8.2 % [3.8, 13.0]")
    assert rows(alone, PART)[1] == ("oracle | here", "-", "", "0", "")
    beside = Report(SUBJECT, (PART,), START)
    assert columns(beside, PART)[1] == "start policy"
    assert [row[1] for row in rows(beside, PART)] == ["50.0 %", "-", "-"]
    assert columns(beside, Part("agreement", "Agreement", ())) == columns(alone, PART)


def test_the_page() -> None:
    text = markdown(Report(SUBJECT, (PART,), START), {"interventions": "interventions.png"})
    assert text.startswith("# Diagnosis of small, policy after 2 updates\n")
    assert "| nothing | 50.0 % | 8.2 % | 3.8 % to 13.0 % | 72 | 8.2 % [3.8, 13.0] |\n" in text
    assert r"| oracle \| here | - | - |" in text
    assert "\nA sentence.\n" in text
    assert text.endswith("![Interventions by replay](interventions.png)\n")
    start = markdown(Report(replace(SUBJECT, iteration=0), (PART,), {}), {})
    assert start.startswith("# Diagnosis of small, start policy\n")
    assert "start policy |" not in start


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "share", "-"),
        (0.5904, "share", "59.0 %"),
        (9.66, "turns", "9.7"),
        (72.0, "count", "72"),
        (0.999, "probability", "0.999"),
        (0.0, "probability", "0.000"),
        (3e-6, "probability", "3.0e-06"),
        (-0.25, "probability", "-0.250"),
    ],
)
def test_numbers_as_text(value: float | None, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def reading(kind: str, family: str) -> EpisodeReading:
    return EpisodeReading("r", 0, "e", "t", family, kind == "won", 9, kind, None, None, 0, None, 4)


def recovery(turns: list[int]) -> Recovery:
    return Recovery("r", 0, "p", "m", 4, len(turns), len(turns) / 4, turns, 20, 3, None, None)


def drawn(folder: Path, *, empty: bool) -> dict[str, bytes]:
    folder.mkdir()
    readings = [] if empty else [reading("won", "a"), reading("after_pivot", "b"), reading("no_pivot", "b")]
    found = [] if empty else [recovery([3, 5])]
    plot_failures(readings, readings[:1] or None, folder / "failures.png")
    plot_interventions(Part("interventions", "", ()) if empty else PART, folder / "interventions.png")
    plot_recovery(found, [recovery([9])] if found else None, 30, folder / "recovery.png")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("empty", [False, True])
def test_plots_are_pictures_and_the_same_ones_again(tmp_path: Path, empty: bool) -> None:
    first = drawn(tmp_path / "first", empty=empty)
    assert sorted(first) == ["failures.png", "interventions.png", "recovery.png"]
    assert all(data.startswith(b"\x89PNG") for data in first.values())
    assert drawn(tmp_path / "second", empty=empty) == first
    assert b"Matplotlib" not in b"".join(first.values()), (
        "no version in it, so that equal figures are equal bytes"
    )


def test_other_figures_give_another_picture(tmp_path: Path) -> None:
    for name, value in (("a", 0.2), ("b", 0.8)):
        part = replace(PART, figures=(replace(PART.figures[0], value=value),))
        plot_interventions(part, tmp_path / name)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()
