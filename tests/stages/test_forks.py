"""A run that goes its own way from another's artifacts, and what a rerun leaves stale."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import app
from pivotopd.artifacts import RunLayout
from pivotopd.exits import run_command
from pivotopd.records import Turn
from pivotopd.runs.copying import copy_run
from pivotopd.runs.forks import fork_of, keep_fork
from pivotopd.runs.prune import Retention, plan_pruning, prune
from pivotopd.runs.verify import verify_run
from stages.fork import plan_fork
from stages.runs import find_run, open_run, plan_of, rerun
from stages.stale import redone, stale_after
from stages.work import Work
from tests.stages.conftest import StoredRun
from tests.stages.reruns import run_stage


def cli(*arguments: str) -> int:
    return run_command(lambda: app(list(arguments), standalone_mode=False))


def fork(run: StoredRun, name: str, first: int | None, root: str | None = None) -> RunLayout:
    """Fork a stored run and write its configuration, as ``pivotopd train --resume --fork`` does."""
    config, layout = find_run(f"{root or run.root}/small")
    new = config.model_copy(update={"name": name, "iterations": 2})
    work, plan = Work(config, layout), plan_of(config, layout)
    found = RunLayout(layout.root, name)
    keep_fork(found, plan_fork(work, plan, new, first))
    open_run(new)
    return found


def test_a_fork_shares_by_reference_and_goes_its_own_way(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    before = run.files()
    layout = fork(run, "own", 1)
    record = fork_of(layout)
    assert record is not None
    shared = [(one.stage, one.iteration) for one in record.shared]
    assert shared == [(name, 0) for name in ("rollout", "label", "recover", "update", "evaluate")]
    work, plan = rerun(layout.uri, "update", 1, [])
    assert plan.job("update", 0) == plan.shared["update", 0]
    assert " done " in run_stage(layout.uri, "rollout", 1, follow=True)[0]
    made = work.find(plan.job("rollout", 1))
    assert made is not None
    assert made.manifest.inputs["policy"] == run.artifact("update", 0).digest
    old = run.artifact("rollout", 1)
    assert made.digest != old.digest  # its rows carry another run's name
    assert [turn.response_ids for turn in made.rows(Turn)] == [turn.response_ids for turn in old.rows(Turn)]
    assert {path: run.files()[path] for path in before} == before  # nothing of the old run was touched
    assert not list((run.root / "own" / "iterations").glob("0000/*"))


def test_a_pruning_of_the_old_run_leaves_what_its_fork_shares(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    old = RunLayout(str(run.root), "small")
    keep = Retention(1, checkpoints=1)
    without = {one.artifact.path for one in plan_pruning(old, keep).removals}
    assert without
    layout = fork(run, "own", 1)
    plan = plan_pruning(old, keep)
    assert plan.removals == ()
    assert without <= {one.path for one in plan.held}
    prune(old, plan)
    assert " done " in run_stage(layout.uri, "rollout", 1)[0]


def test_a_fork_that_only_has_its_record_is_in_use(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    layout = fork(run, "own", 1)
    (run.root / "own" / "config.yaml").unlink()
    assert fork_of(layout) is not None
    assert plan_pruning(RunLayout(str(run.root), "small"), Retention(1, 1)).removals == ()


def test_a_copied_fork_brings_what_it_shares(copy: Callable[[], StoredRun], s3_root: str) -> None:
    run = copy()
    copy_run(fork(run, "own", 1), s3_root)
    there = RunLayout(s3_root, "own")
    found = verify_run(there)
    assert found.problems == ()
    assert found.artifacts >= 5
    work, plan = rerun(there.uri, "rollout", 1, [])
    assert work.find(plan.job("update", 0)) is not None
    assert work.policy_folder(plan.policy(1)).is_dir()


def test_a_fork_in_a_bucket(copy: Callable[[], StoredRun], s3_root: str) -> None:
    run = copy()
    copy_run(RunLayout(str(run.root), "small"), s3_root)
    layout = fork(run, "own", 2, root=s3_root)
    work, plan = rerun(layout.uri, "rollout", 1, [])
    shared = fork_of(layout)
    assert shared is not None
    assert all(work.find(plan.job(one, at)) for at in (0, 1) for one in plan.stages())
    assert plan_pruning(RunLayout(s3_root, "small"), Retention(1, 1)).removals == ()


def test_a_fork_refuses_what_is_not_there(
    copy: Callable[[], StoredRun], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy()
    resume = ["train", "--resume", run.uri]
    assert cli(*resume, "--fork", "own", "--from", "3", "--dry-run") == 3
    assert "has 2 complete iterations" in capsys.readouterr().err
    assert cli(*resume, "--fork", "small", "--dry-run") == 2
    assert cli(*resume, "--from", "1") == 2
    assert cli("train", "--fork", "own") == 2
    assert cli(*resume, "name=other") == 2
    fork(run, "own", 1)
    capsys.readouterr()
    assert cli(*resume, "--fork", "own", "--from", "2") == 2
    assert "there is a run named 'own' already" in capsys.readouterr().err


def test_dry_runs_of_fork_and_resume_say_what_is_cached(
    copy: Callable[[], StoredRun], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy()
    before = run.files()
    assert cli("train", "--resume", run.uri, "--fork", "own", "--from", "1", "--dry-run") == 0
    lines = {line[:18].strip(): line[18:].split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert lines["update 0000"] == lines["evaluate 0000"] == "cached"
    assert lines["rollout 0001"] == lines["update 0001"] == "would"
    assert cli("train", "--resume", run.uri, "update.learning_rate=2e-4", "--dry-run") == 0
    told = capsys.readouterr().out
    old = run.artifact("update", 0).digest[:12]
    assert f"update 0000        will be redone: {old} -> " in told
    assert "(other settings)" in told
    assert "rollout 0001       will be redone" in told
    assert "rollout 0000       will be redone" not in told
    assert run.files() == before


def test_a_rerun_names_what_is_stale(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    work, plan = rerun(run.uri, "label", 0, ["teacher.max_candidates=1"])
    jobs = [plan.job(name, 0) for name in ("label", "recover", "update")]
    stale = stale_after(work.layout, jobs)
    assert {(one.manifest.stage, one.manifest.iteration) for one in stale} == {
        ("rollout", 1), ("label", 1), ("recover", 1), ("update", 1), ("evaluate", 2),
    }  # fmt: skip
    assert stale_after(work.layout, [plan.job("rollout", 0)]) == []  # cached: nothing is replaced
    alone = {(one.manifest.stage, one.manifest.iteration) for one in stale_after(work.layout, jobs[:1])}
    assert ("recover", 0) in alone  # with --only, the iteration's own later stages rest on the old labels
    assert ("update", 0) in alone
    assert [one.why for one in redone(work, jobs)] == [("settings",), ("settings", "inputs"), ("inputs",)]


def test_the_command_tells_stale_artifacts_and_tracks_the_rerun(
    copy: Callable[[], StoredRun], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = copy()
    old = run.artifact("label", 1)
    call = ["stage", "label", "--run", run.uri, "--iteration", "1", "--only", "teacher.max_candidates=1"]
    assert cli(*call, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["stage"], one["cached"]) for one in told["jobs"]] == [("label", False)]
    assert {(one["stage"], one["iteration"]) for one in told["stale"]} == {
        ("recover", 1), ("update", 1), ("evaluate", 2),
    }  # fmt: skip
    assert told["stale"][0]["digest"] == run.artifact("recover", 1).digest
    assert "--fork NEWNAME" in told["mend"][0]
    assert (Path(old.uri) / "manifest.json").is_file()
    client = MlflowClient(f"sqlite:///{run.root}/mlflow.db")
    names = [
        one.info.run_name
        for experiment in client.search_experiments()
        for one in client.search_runs([experiment.experiment_id])
    ]
    assert names == [f"small label 0001 {told['jobs'][0]['digest'][:8]}"]
    assert cli(*call) == 0
    again = capsys.readouterr().out
    assert "cached" in again
    assert "stale: made from what this replaces" in again
