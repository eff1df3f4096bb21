"""Runs of a comparison are ordinary runs: found, refused where they cannot be compared, and measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pivotopd.comparison.experiment import Cell, cells_of, load_experiment
from pivotopd.comparison.measure import summarise
from pivotopd.config_files import apply_overrides
from pivotopd.errors import ArtifactError, ConfigError, RunsFailed
from pivotopd.records import Replay, Turn
from pivotopd.tracking import NoTracker
from stages import plan as plans
from stages.compare import Member, Opened, measure, member_of, members_of, panel_fingerprint, progress_of
from stages.comparison_report import measured, refuse_missing, report, state_of
from stages.metrics import metrics_of
from tests.small_student import small_config
from tests.stages.conftest import StoredRun


def written(folder: Path, student: Path, methods: dict[str, object], **more: object) -> Path:
    """Write an experiment on the small run's configuration."""
    config = small_config(folder / "root", student, tracking__enabled=False)
    (folder / "base.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    file = folder / "experiment.yaml"
    said = {"name": "try", "base": "base.yaml", "seeds": [0, 1], "methods": methods, **more}
    file.write_text(yaml.safe_dump(said, sort_keys=False))
    return file


def members(file: Path) -> list[Member]:
    return members_of(load_experiment(file), file)


@pytest.fixture
def member(finished: StoredRun, student: Path) -> Member:
    """The finished run as a member of a comparison."""
    return member_of(Cell("small", 0, small_config(finished.root, student)), Opened())


# -------------------------------------------------------------------------- which runs


def test_members_are_the_runs_that_train_would_make(tmp_path: Path, student: Path) -> None:
    found = members(written(tmp_path, student, {"pivotopd": {}, "grpo": {"method": "grpo"}}))
    assert [one.cell.label for one in found] == [
        "pivotopd-seed0",
        "pivotopd-seed1",
        "grpo-seed0",
        "grpo-seed1",
    ]
    assert len({one.uri for one in found}) == 4
    assert all(one.config.name and one.config.name.startswith("alfworld-") for one in found)
    assert [one.iterations for one in found] == [[0, 2]] * 4
    assert len({panel_fingerprint(one) for one in found}) == 1
    assert len({id(one.plan.environment) for one in found}) == 1, "the games are read once"
    assert {one.config.tracking.experiment for one in found} == {"pivotopd/alfworld/pretrained"}
    assert all(one.start is None for one in found), "a pretrained student needs no warm start"


def test_a_tiny_student_s_warm_start_is_shared(tmp_path: Path, student: Path) -> None:
    arms = {"one": {}, "two": {"recovery.depth": 2}, "other": {"warm_start.steps": 7}}
    found = members(written(tmp_path, student, arms, overrides={"student.kind": "tiny"}))
    starts = {one.cell.label: one.start for one in found}
    digests = {label: start.digest for label, start in starts.items() if start is not None}
    assert len(digests) == 6
    assert len(set(digests.values())) == 2
    assert digests["one-seed0"] == digests["two-seed1"] != digests["other-seed0"]
    assert not any(start.published() for start in starts.values() if start is not None)


def test_two_arms_that_are_one_run_are_refused(tmp_path: Path, student: Path) -> None:
    with pytest.raises(ConfigError, match="arms 'one' and 'two' are the same run"):
        members(written(tmp_path, student, {"one": {}, "two": {"recovery.depth": 1}}))
    with pytest.raises(ConfigError, match="are the same run"):
        members(written(tmp_path, student, {"one": {}, "two": {"iterations": 5}}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"environment.generated.seed": 9}, "games"),
        ({"environment.wording": "put"}, "wording"),
        ({"environment.max_turns": 11}, "max_turns"),
        ({"evaluation.temperature": 0.9}, "temperature"),
    ],
)
def test_other_panels_are_refused_with_both_fingerprints(
    tmp_path: Path, student: Path, settings: dict[str, object], named: str
) -> None:
    file = written(tmp_path, student, {"one": {}, "two": settings})
    with pytest.raises(ConfigError, match="play different panels") as caught:
        members(file)
    assert f"{named}: " in caught.value.what
    pair = {panel_fingerprint(member_of(cell, Opened()))[:16] for cell in cells(file)}
    assert len(pair) == 2
    assert all(fingerprint in caught.value.what for fingerprint in pair)


def cells(file: Path) -> list[Cell]:
    return cells_of(load_experiment(file), file)


def test_how_a_student_is_told_of_the_games_is_its_arm_s_own(tmp_path: Path, student: Path) -> None:
    members(written(tmp_path, student, {"one": {}, "two": {"environment.history": 1}}))


# --------------------------------------------------------------------------- how far


def test_a_finished_run_is_complete_and_its_figures_are_those_it_reported(
    member: Member, finished: StoredRun
) -> None:
    progress = progress_of(member)
    assert progress.complete
    assert progress.updates == 2
    assert state_of(progress, 2, None) == state_of(progress, 2, 0) == "complete"
    for one in measure(progress):
        reported = metrics_of(finished.artifact("evaluate", one.iteration))
        found = summarise("small", 0, [one], None)
        assert found.success.mean == pytest.approx(reported["evaluate/success"])
        assert found.family_mean.mean == pytest.approx(reported["evaluate/family_mean"])
        rate = None if found.recovery is None else pytest.approx(found.recovery.rate.mean)
        assert reported.get("evaluate/recovery_rate") == rate
        assert (0 if found.recovery is None else found.recovery.mistakes) == reported.get(
            "evaluate/mistakes", 0
        )


def test_replays_are_kept_one_by_one(finished: StoredRun) -> None:
    first, last = finished.artifact("evaluate", 0), finished.artifact("evaluate", 2)
    before, after = first.rows(Replay), last.rows(Replay)
    assert [(row.mistake, row.state_hash, row.seed) for row in before] == [
        (row.mistake, row.state_hash, row.seed) for row in after
    ]
    assert len(before) == first.manifest.counts["mistakes"], "one replay a mistake"
    turns = {(turn.episode, turn.turn): turn for turn in first.rows(Turn)}
    for row in before:
        mistake, reached = turns[row.mistake, row.pivot_turn], turns[row.mistake, row.pivot_turn + 1]
        assert row.state_hash == reached.state_hash != mistake.state_hash
        assert row.turns <= 10 - row.pivot_turn - 1
    assert {row.policy for row in after} <= {last.manifest.inputs["policy"]}


def test_a_longer_run_is_incomplete_and_says_how_far_it_is(finished: StoredRun, student: Path) -> None:
    config = apply_overrides(small_config(finished.root, student), ["iterations=3"])
    member = member_of(Cell("small", 0, config), Opened())
    progress = progress_of(member)
    assert not progress.complete
    said = "1 of 2 evaluations, 2 of 3 updates"
    assert state_of(progress, 3, None) == f"incomplete: {said}"
    assert state_of(progress, 3, 6).startswith("failed with exit code 6 (nothing to train on")
    assert state_of(progress, 3, -9) == f"failed with exit code -9 (killed by signal 9): {said}"


def test_what_other_code_made_is_found_only_where_it_is_asked_for(
    finished: StoredRun, student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "code_digest", lambda module: f"another {module}")
    member = member_of(Cell("small", 0, small_config(finished.root, student)), Opened())
    assert not progress_of(member).evaluations
    found = progress_of(member, any_code=True)
    assert found.complete
    assert found.other_code
    assert {one.digest for one in found.evaluations.values()} == {
        artifact.name for artifact in (finished.root / "small" / "iterations").glob("*/evaluate/*")
    }
    assert measured(member, code=None, any_code=True).state == "complete, made by other code"


def test_a_run_that_was_never_started_is_nobody_elses(tmp_path: Path, student: Path) -> None:
    (one, *_) = members(written(tmp_path, student, {"pivotopd": {}}))
    found = progress_of(one, any_code=True)
    assert (found.other_code, found.complete) == (False, False)
    assert "other code" not in measured(one, code=None, any_code=True).state


def test_the_report_lies_in_the_root_and_missing_runs_are_refused_last(
    finished: StoredRun, member: Member, tmp_path: Path, student: Path
) -> None:
    experiment = load_experiment(written(tmp_path, student, {"small": {}, "absent": {}}))
    absent = member_of(Cell("absent", 0, small_config(tmp_path / "root", student)), Opened())
    comparison, address = report(experiment, [member, absent], NoTracker(), codes={"absent-seed0": 6})
    folder = finished.root / "comparisons" / "try"
    assert address == str(folder)
    assert (folder / "report.html").is_file()
    assert [run.arm for run in comparison.missing] == ["absent"]
    with pytest.raises(RunsFailed, match=r"1 of 2 runs are missing: absent seed 0: failed with exit code 6"):
        refuse_missing(comparison, address)


def test_what_an_arm_lacks_is_said_before_any_run_starts(tmp_path: Path, student: Path) -> None:
    arms = {"fine": {}, "other": {"student.path": str(tmp_path / "nowhere")}}
    with pytest.raises(ArtifactError, match="no such model folder"):
        members(written(tmp_path, student, arms))
    with pytest.raises(ConfigError, match=r"larger"):
        members(written(tmp_path, student, {"fine": {}, "opd": {"method": "opd"}}))
