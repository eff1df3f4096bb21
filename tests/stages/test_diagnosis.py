"""A diagnosis in parts: each an artifact of its own, made once, the same whatever the batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact
from pivotopd.diagnosis.figures import Part
from pivotopd.diagnosis.report import Report
from pivotopd.errors import ArtifactError
from pivotopd.records import Episode, Turn
from pivotopd.records_diagnosis import EpisodeReading, KnownMistake, Recovery, TurnReading
from stages.command import rerun_jobs
from stages.diagnosis_plan import PARTS, STAGES, START, DiagnosisPlan
from stages.diagnosis_report import report_of
from stages.figures import part_of
from stages.metrics import metrics_of
from stages.runner import Done, perform
from stages.runs import open_run, rerun
from tests.small_student import small_config
from tests.stages.conftest import StoredRun

pytestmark = pytest.mark.slow

SETTINGS = (
    "diagnosis.split=train", "diagnosis.tasks=4", "diagnosis.samples=2", "diagnosis.temperature=1.0",
    "diagnosis.repeats=2", "diagnosis.replays=2", "diagnosis.draws=200", "diagnosis.recovery_draws=200",
)  # fmt: skip


def diagnose(uri: str, iteration: int, *overrides: str) -> dict[tuple[str, int | None], Done]:
    """Do all jobs of a diagnosis in this process."""
    work, plan = rerun(uri, "diagnose", None, [*SETTINGS, *overrides])
    jobs = DiagnosisPlan(plan).jobs(iteration)
    return {(job.stage, job.iteration): perform(work, job) for job in jobs}


@pytest.fixture(scope="module")
def diagnosed(finished: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    root = tmp_path_factory.mktemp("diagnosed") / "root"
    shutil.copytree(finished.root, root)
    run = StoredRun(root)
    diagnose(run.uri, 2)
    return run


def of(run: StoredRun, stage: str, iteration: int, *overrides: str) -> Artifact:
    work, plan = rerun(run.uri, "diagnose", None, [*SETTINGS, *overrides])
    found = work.find(DiagnosisPlan(plan).job(stage, iteration))
    assert found is not None
    return found


def report(run: StoredRun, iteration: int) -> Report:
    return report_of(of(run, "diagnosis_report", iteration))


# --------------------------------------------------------------------------- what comes out


@pytest.mark.parametrize("iteration", [0, 2])
def test_the_panel_is_read_turn_by_turn(diagnosed: StoredRun, iteration: int) -> None:
    artifact = of(diagnosed, "diagnose", iteration)
    counts, episodes, readings = (
        artifact.manifest.counts, artifact.rows(Episode), artifact.rows(EpisodeReading),
    )  # fmt: skip
    assert counts["episodes"] == counts["replayed"] == len(episodes) == len(readings) == 8
    turns = artifact.rows(Turn)
    read = artifact.rows(TurnReading)
    assert [(one.episode, one.turn, one.action) for one in read] == [
        (one.episode, one.turn, one.action) for one in turns
    ]
    for reading in readings:
        own = [one for one in read if one.episode == reading.episode]
        pivots = [one.turn for one in own if one.change in ("regress", "dead")]
        assert (reading.pivot_turn, reading.pivots) == (pivots[0] if pivots else None, len(pivots))
        assert reading.kind == ("won" if reading.won else "after_pivot" if pivots else "no_pivot")
    kinds = [one.kind for one in readings]
    metrics = metrics_of(artifact)
    assert metrics["diagnose/failures/failed"] == 1 - kinds.count("won") / 8
    assert metrics["diagnose/failures/after_pivot"] == kinds.count("after_pivot") / 8


def test_all_policies_replay_one_set(diagnosed: StoredRun) -> None:
    artifact = of(diagnosed, "mistakes", 0)
    panel = of(diagnosed, "diagnose", 0).rows(EpisodeReading)
    wanted = {one.episode: one for one in panel if one.kind == "after_pivot" and one.wasted_turns}
    known = artifact.rows(KnownMistake)
    assert known, "the small student makes mistakes"
    assert {one.mistake for one in known} == set(wanted)
    for one in known:
        reading = wanted[one.mistake]
        assert (one.turn, one.oracle_action) == (reading.pivot_turn, reading.oracle_action)
    first, last = of(diagnosed, "recovery_check", 0), of(diagnosed, "recovery_check", 2)
    assert first.manifest.inputs["mistakes"] == last.manifest.inputs["mistakes"] == artifact.digest
    start = {one.mistake: one for one in first.rows(Recovery)}
    for one in last.rows(Recovery):
        before = start[one.mistake]
        assert before.start_rate is before.change is None
        assert one.start_rate == before.rate
        change = "unchanged" if one.rate == before.rate else ("worsened", "improved")[one.rate > before.rate]
        assert one.change == change
        assert one.replays == before.replays == 2


def test_the_report_holds_every_part_and_the_start_policy(diagnosed: StoredRun) -> None:
    artifact = of(diagnosed, "diagnosis_report", 2)
    folder = artifact.local_path()
    names = ["failures.png", "interventions.png", "recovery.png", "report.json", "report.md"]
    assert sorted(path.name for path in folder.iterdir()) == names
    found = report(diagnosed, 2)
    assert found.subject.iteration == 2
    assert [part.name for part in found.parts] == [part_of(of(diagnosed, one, 2)).name for one in PARTS]
    for stage in START:
        for figure in part_of(of(diagnosed, stage, 0)).figures:
            assert found.start[figure.key] == figure
    page = (folder / "report.md").read_text(encoding="utf-8")
    for published in (
        "59 % (155 of 262)",
        "8-12 of 30",
        "18-21",
        "6.9 %",
        "58.3 %",
        "72.7 %",
        "13.4",
        "28.1 %",
    ):
        assert published in page
    assert "published (other models)" in page
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["subject"]["run"] == "small"


# --------------------------------------------------------------------------- what it depends on


def test_figures_do_not_depend_on_the_batch(
    diagnosed: StoredRun, finished: StoredRun, tmp_path: Path
) -> None:
    shutil.copytree(finished.root, tmp_path / "root")
    other = StoredRun(tmp_path / "root")
    done = diagnose(other.uri, 0, "rollout.batch_episodes=3", "update.micro_batch_tokens=256")
    for stage in START:
        artifact, same = done[stage, 0].artifact, of(diagnosed, stage, 0)
        assert artifact.digest == same.digest, "a batch is not part of the work"
        assert part_of(artifact) == part_of(same)
    assert done["mistakes", 0].artifact.rows(KnownMistake) == of(diagnosed, "mistakes", 0).rows(KnownMistake)


def test_what_is_done_is_not_done_again_and_what_was_interrupted_goes_on(
    finished: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished.root, tmp_path / "root")
    run = StoredRun(tmp_path / "root")

    def broken(*_: object, **__: object) -> Part:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stages.recovery_check.recovery_part", broken)
        with pytest.raises(KeyboardInterrupt):
            diagnose(run.uri, 0)
    again = diagnose(run.uri, 0)
    cached = {stage for (stage, _), done in again.items() if done.cached}
    assert cached == {"diagnose", "mistakes", "intervene"}
    assert all(done.cached for done in diagnose(run.uri, 0).values())


# --------------------------------------------------------------------------- a given set


def test_a_given_set_is_replayed(diagnosed: StoredRun, finished: StoredRun, tmp_path: Path) -> None:
    given = of(diagnosed, "mistakes", 0)
    shutil.copytree(finished.root, tmp_path / "root")
    other = StoredRun(tmp_path / "root")
    address = f"diagnosis.mistakes={given.uri}"
    other.run("mistakes", 0, *SETTINGS, address)
    copied = of(other, "mistakes", 0, address)
    assert copied.digest != given.digest
    assert copied.rows(KnownMistake) == given.rows(KnownMistake)
    other.run("recovery_check", 0, *SETTINGS, address)
    assert of(other, "recovery_check", 0, address).rows(Recovery) == of(diagnosed, "recovery_check", 0).rows(
        Recovery
    )


@pytest.mark.parametrize(
    "changed", ["environment.generated.seed=5", "environment.wording=put", "environment.max_turns=9"]
)
def test_a_set_of_other_games_wording_or_budget_is_refused(
    diagnosed: StoredRun, copy: Callable[[], StoredRun], changed: str
) -> None:
    given = of(diagnosed, "mistakes", 0)
    with pytest.raises(ArtifactError, match=given.manifest.notes["fingerprint"]) as caught:
        copy().run("mistakes", 0, *SETTINGS, changed, f"diagnosis.mistakes={given.uri}")
    assert "this diagnosis" in caught.value.what
    assert caught.value.exit_code == 3


def test_a_given_set_that_does_not_exist_is_refused(copy: Callable[[], StoredRun]) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        copy().run("mistakes", 0, *SETTINGS, "diagnosis.mistakes=/nowhere/mistakes/abc")


def test_a_given_artifact_of_another_stage_is_refused_before_any_work(
    diagnosed: StoredRun, copy: Callable[[], StoredRun]
) -> None:
    panel = of(diagnosed, "diagnose", 0)
    with pytest.raises(ArtifactError, match="of the stage 'diagnose', not a set of mistakes") as caught:
        copy().run("mistakes", 0, *SETTINGS, f"diagnosis.mistakes={panel.uri}")
    assert caught.value.where == panel.uri


# --------------------------------------------------------------------------- extremes


def test_a_policy_that_cannot_fail_has_empty_tables(tmp_path: Path, student: Path) -> None:
    """No turn suffices to make a mistake and go on: nothing to replay, to correct, to agree on, to score."""
    open_run(small_config(tmp_path, student, environment__max_turns=1))
    done = diagnose(f"{tmp_path}/small", 0)
    found = report_of(done["diagnosis_report", 0].artifact)
    values = {figure.key: figure.value for part in found.parts for figure in part.figures}
    assert values["recovery/mistakes"] == 0
    assert values["recovery/rate"] is None
    assert all(part.notes for part in found.parts if part.name != "failures")


def test_every_part_is_a_stage_of_its_own(diagnosed: StoredRun) -> None:
    for stage in STAGES:
        at = 0 if stage == "mistakes" else 2
        work, [job] = rerun_jobs(diagnosed.uri, stage, at, list(SETTINGS), follow=True)
        assert work.find(job) is not None, stage
