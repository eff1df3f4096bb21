from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.page import PAGE, measures_of, render, sections_of
from benchmarks.reasons import reason_of
from benchmarks.result import Measure, Skipped, bound, interval, show, verdict
from benchmarks.runner import BENCHMARKS, Report, run, run_again

RATIO = Measure(name="restore/stock", label="restore", value=3.0, low=1.9, high=4.0, gate=2.0, aim=3.0)
SHARE = Measure(
    name="overhead/k1",
    label="K = 1",
    value=4.0,
    low=1.0,
    high=9.0,
    unit="%",
    better="less",
    gate=10.0,
    aim=5.0,
)


def test_a_gate_is_judged_by_the_bad_end() -> None:
    assert RATIO.met is False  # 3 would pass, 1.9 does not
    assert SHARE.met is True
    assert SHARE.aim_met is False  # 4 would pass, 9 does not
    assert Measure(name="a", label="a", value=1, low=1, high=1).met is None


def test_verdicts_and_bounds_say_the_direction() -> None:
    assert verdict(RATIO) == "MISSED"
    assert verdict(SHARE) == "met"
    assert bound(RATIO, RATIO.gate) == "≥ 2x"
    assert bound(SHARE, SHARE.gate) == "≤ 10%"
    assert interval(RATIO) == "3x [1.90, 4]"


def test_a_table_shows_misses() -> None:
    console = Console(width=160, record=True)
    show([RATIO, SHARE], console)
    assert "MISSED" in console.export_text()
    show([RATIO, SHARE], console, judged=False)
    assert "MISSED" not in console.export_text()


def test_what_did_not_run_counts_as_missed() -> None:
    report = Report(quick=False, measures=[RATIO, SHARE], skipped=[Skipped("update", "no TRL")])
    assert report.missed == ["restore/stock", "update"]
    assert Report(quick=True, measures=[RATIO], skipped=report.skipped).missed == ["update"]
    assert json.loads(json.dumps(report.as_json()))["missed"] == report.missed


def test_one_that_cannot_run_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def differ(*, quick: bool) -> list[Measure]:
        raise SystemExit("the sides differ")

    def fine(*, quick: bool) -> list[Measure]:
        return [SHARE]

    monkeypatch.setattr("benchmarks.restore.measure", differ)
    monkeypatch.setattr("benchmarks.growth.measure", fine)
    out = tmp_path / "results" / "cpu.json"
    report = run(["restore", "growth"], quick=True, out=out, console=Console(quiet=True))
    assert [one.name for one in report.measures] == ["overhead/k1"]
    assert report.skipped == [Skipped("restore", "the sides differ")]
    written = json.loads(out.read_text())
    assert {"machine", "versions", "measures", "seconds"} <= written.keys()
    assert measures_of(written) == [SHARE]


def test_a_page_tells_values_misses_and_reasons() -> None:
    late = Measure(
        name="overhead/k1/latency",
        label="K = 1 late",
        value=40,
        low=39,
        high=41,
        better="less",
        gate=10,
        unit="%",
    )
    report = Report(quick=False, measures=[RATIO, SHARE, late], skipped=[Skipped("update", "no TRL")])
    page = render(report.as_json())
    missed = page[page.index("## Missed") :]
    assert "K = 1 late" in missed
    assert "two rounds of the teacher" in missed
    assert "no TRL" in missed
    assert "Quick run" not in page
    assert "Quick run" in render(Report(quick=True, measures=[RATIO]).as_json())
    assert list(sections_of([late, RATIO]).values()) == [[late], [RATIO]]


def test_the_longest_reason_fits() -> None:
    assert reason_of("overhead/k2/lesson") != reason_of("overhead/k2")
    assert reason_of("unknown") == "Not explained yet."


def test_one_that_is_run_again_replaces_what_the_file_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "cpu.json"
    first = Report(quick=False, measures=[SHARE], skipped=[Skipped("restore/stock", "no engine")])
    first.write(out)
    monkeypatch.setitem(BENCHMARKS, "restore", f"{__name__}:_ratios")
    run_again(["restore"], out=out, console=Console(quiet=True))
    content = json.loads(out.read_text())
    assert [one["name"] for one in content["measures"]] == ["overhead/k1", "restore/stock"]
    assert content["skipped"] == []
    assert content["missed"] == ["restore/stock"]
    assert list(content["again"]) == ["restore"]
    assert "`restore` was measured again by itself" in render(content)


def test_nothing_is_measured_again_where_no_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "restore", "--again", "--out", str(tmp_path / "none.json")])
    assert "is not there yet" in capsys.readouterr().err


def _ratios(*, quick: bool) -> list[Measure]:
    del quick
    return [RATIO]


def test_the_page_in_the_docs_is_that_of_the_result_file() -> None:
    results = PAGE.parent.parent / "benchmarks" / "results" / "cpu.json"
    if not results.exists():
        pytest.skip("no result file: `make bench` writes it")
    gpu = results.with_name("gpu.json")
    beside = json.loads(gpu.read_text()) if gpu.exists() else None
    assert PAGE.read_text(encoding="utf-8") == render(json.loads(results.read_text()), beside)


def test_every_benchmark_can_be_imported() -> None:
    import importlib

    for place in BENCHMARKS.values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
