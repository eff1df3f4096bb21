"""Results, tables and the page of a made-up comparison."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pivotopd.comparison.plots import plots_of
from pivotopd.comparison.report import report_files
from pivotopd.comparison.results import Comparison, Result
from pivotopd.comparison.tables import recovery_table, seeds_table, success_table, tables_of
from tests.comparison.cases import experiment, outcomes, run

START = outcomes(0, [0, 0, 1, 0], [0, 0])
HALF = outcomes(5, [1, 0, 1, 0], [4, 0], policy="half")
DONE = outcomes(10, [1, 1, 1, 0], [4, 2], policy="done")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """One arm that is whole, one of which a seed is missing, and one of which nothing is there."""
    runs = (
        run("whole", 0, START, HALF, DONE),
        run("whole", 1, START, replace(DONE, iteration=5), DONE),
        run("part", 0, START, replace(START, iteration=5), outcomes(10, [0, 0, 0, 0], [0, 0], policy="bad")),
        run("part", 1, START),
        run("none <b>", 0),
        run("none <b>", 1),
    )
    made = experiment("whole", "part", "other")
    return Comparison(made.model_copy(update={"methods": {"whole": (), "part": (), "none <b>": ()}}), runs)


def results(comparison: Comparison) -> dict[tuple[str, int | None, str, int], Result]:
    listed = comparison.results()
    found = {(one.method, one.seed, one.metric, one.iteration): one for one in listed}
    assert len(found) == len(listed), "a figure stands there once"
    return found


def test_results_hold_every_seed_and_iteration(comparison: Comparison) -> None:
    found = results(comparison)
    assert found["start", None, "success", 0].value == 0.25
    assert found["whole", 0, "success", 5].value == 0.5
    assert found["whole", None, "success", 5].value == (0.5 + 0.75) / 2
    assert found["whole", None, "recovery_rate", 10].value == 0.75
    assert found["whole", 1, "recovered", 10].value == 6
    assert found["whole", None, "improved", 10].value == 2
    assert found["part", None, "success", 10].value == 0.0
    assert found["part", None, "seeds", 10].value == 1
    assert found["part", None, "turns_to_recover", 10].value is None
    assert ("part", 1, "success", 10) not in found
    assert not any(method == "none <b>" for method, *_ in found)


def test_levels_are_reached_at_an_evaluated_iteration_or_not(comparison: Comparison) -> None:
    found = results(comparison)
    name = "iterations_until_recovery_0.5"
    assert found["whole", 0, name, 10].value == 5
    assert found["part", 0, name, 10].value is None
    assert [(one.method, one.seed, one.iteration) for one in comparison.reached] == [
        ("whole", 0, 5),
        ("whole", 1, 5),
        ("part", 0, None),
    ]


def test_the_tables_say_what_is_missing(comparison: Comparison) -> None:
    rows = {row[0]: row for row in success_table(comparison).rows}
    assert list(rows) == ["start", "whole", "part", "none <b>"]
    assert rows["start"][1:3] == ("50.0", "0.0")
    assert rows["whole"][1:3] == ("100.0", "50.0")
    assert rows["whole"][3].startswith("75.0 [")
    assert [rows[name][-1] for name in rows] == ["-", "2", "1 of 2", "0 of 2"]
    assert {len(row) for row in rows.values()} == {len(success_table(comparison).columns)}
    shown = {row[0]: row for row in recovery_table(comparison).rows}
    assert shown["start"][1:4] == ("0 of 8", "0.0 [0.0, 0.0]", "-")
    assert shown["whole"][1] == "12 of 16"
    assert shown["whole"][3] == "2 / 0 / 0"
    assert shown["part"][1:5] == ("0 of 8", "0.0 [0.0, 0.0]", "0 / 0 / 2", "-")
    assert len(seeds_table(comparison).rows) == 3
    for table in tables_of(comparison):
        assert all(len(row) == len(table.columns) for row in table.rows), table.title


def test_an_arm_can_be_the_reference() -> None:
    runs = (
        run("base", 0, START, outcomes(10, [1, 1, 1, 1], [2, 4])),
        run("base", 1, START, outcomes(10, [1, 1, 1, 1], [0, 4])),
        run("other", 0, START, outcomes(10, [1, 1, 1, 1], [2, 1])),
        run("other", 1, START, outcomes(10, [1, 1, 1, 1], [2, 3])),
    )
    found = Comparison(experiment("base", "other", reference="base"), runs)
    shown = {row[0]: row[3] for row in recovery_table(found).rows}
    assert shown == {"start": "-", "base": "-", "other": "1 / 1 / 0"}


def test_arms_with_other_starts_have_a_row_for_each() -> None:
    other = outcomes(0, [1, 1, 1, 1], [], policy="another")
    runs = (run("a", 0, START, DONE), run("b", 0, other, outcomes(10, [1, 1, 1, 1], [], policy="b")))
    found = Comparison(experiment("a", "b", seeds=(0,)), runs)
    assert [row[0] for row in success_table(found).rows] == ["start (a)", "start (b)", "a", "b"]
    assert {row[0]: row[1] for row in recovery_table(found).rows}["b"] == "no mistakes"


class _Links(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(comparison: Comparison) -> None:
    files = report_files(comparison)
    assert set(files) == {"results.json", "results.md", "report.html", "curves.png", "bars.png", "types.png"}
    page = files["report.html"].decode()
    links = _Links()
    links.feed(page)
    assert len(links.loaded) == 3
    assert all(link.startswith("data:image/png;base64,") for link in links.loaded)
    assert not {"script", "link", "iframe", "b"} & set(links.tags)
    assert "none &lt;b&gt;" in page
    assert not re.search(r"@import|url\(", page)
    assert "3 of 6 runs are missing" in page
    for run_ in comparison.runs:
        assert run_.uri.replace("<", "&lt;").replace(">", "&gt;") in page


def test_the_files_are_the_same_every_time_and_readable(comparison: Comparison) -> None:
    once = report_files(comparison)
    again = report_files(Comparison(comparison.experiment, comparison.runs))
    assert once == again
    lines = json.loads(once["results.json"])
    assert set(lines[0]) == {"method", "seed", "metric", "iteration", "value", "low", "high"}
    assert len(lines) == len(comparison.results())
    for name in ("curves.png", "bars.png", "types.png"):
        assert once[name].startswith(b"\x89PNG")


def test_a_comparison_of_nothing_has_tables_and_no_figures() -> None:
    empty = Comparison(experiment("a"), (run("a", 0), run("a", 1)))
    assert plots_of(empty) == []
    assert success_table(empty).rows == (("a", "-", "-", "0 of 2"),)
    assert recovery_table(empty).rows == (("a", "-", "-", "-", "-", "0 of 2"),)
    page = report_files(empty)["report.html"].decode()
    assert "Nothing is measured yet." in page


def test_a_curve_is_over_the_same_seeds_at_every_point(comparison: Comparison) -> None:
    assert [(one.iteration, one.seeds) for one in comparison.curves["whole"]] == [(0, 2), (5, 2), (10, 2)]
    assert [(one.iteration, one.seeds) for one in comparison.curves["part"]] == [(0, 1), (5, 1), (10, 1)]
    assert comparison.curves["none <b>"] == []
