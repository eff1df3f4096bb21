"""Trainings on a real SLURM of one node: awaited, found again, cancelled, stopped for their time limit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from tests.child_process import wait_until
from tests.flows.runs import PATIENCE_S, environment_of, finish, processes_of, source
from tests.slurm_node import slurm_node
from tests.small_student import small_config

pytestmark = pytest.mark.slow
NAME = 'it\'s 100%j "small" #1 $HOME é'
"""A run's name that bash, sbatch and the patterns of its log files would each read in a way of its own."""


@pytest.fixture(scope="module", autouse=True)
def slurm() -> Iterator[None]:
    with slurm_node() as configuration, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        yield


def config_of(root: Path, student: Path, **changes: object) -> RunConfig:
    launch = {"resources": {"memory_gb": 2, "time_limit_min": 60}, "slurm": {"poll_s": 0.5}}
    return small_config(root, student, iterations=1, launch=launch, **changes)


def start(config: RunConfig, home: Path, *arguments: str) -> subprocess.Popen[str]:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(dump_config(config))
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "submit", str(home / "config.yaml"), *arguments],
        cwd=source(),
        env=environment_of(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(config: RunConfig, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return finish(start(config, home, *arguments))


def published(root: Path) -> dict[str, Artifact]:
    return {one.path: one for one in list_artifacts(Store(str(root)))}


def records(root: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted(root.glob("*/jobs/*/*/job.json"))]


def word(job: str) -> str:
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def running(root: Path) -> bool:
    """The first job that was submitted runs."""
    found = records(root)
    return bool(found) and bool(found[0]["job"]) and word(found[0]["job"]) == "RUNNING"


@pytest.fixture(scope="module")
def trained(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a training in one allocation whose waiting command was killed and which was requeued once."""
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    config = config_of(root, student, name=NAME)
    first = start(config, home)
    wait_until(lambda: running(root), PATIENCE_S)
    first.kill()
    first.communicate()
    job = records(root)[0]["job"]
    wait_until(lambda: published(root), PATIENCE_S)
    # What SLURM does ahead of the time limit, at a moment that is known.
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    wait_until(lambda: word(job) == "PENDING", PATIENCE_S)
    done = run(config, home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"train: slurm job {job} found" in done.stdout
    assert "done" in (records(root)[0]["ended"] or "")
    wait_until(lambda: not processes_of(home), PATIENCE_S)
    return root


def test_a_training_survives_its_orchestrator_and_its_time_limit(trained: Path) -> None:
    [record] = records(trained)
    log = Path(record["folder"], "log.txt").read_text()
    assert log.count("error: asked to stop by SIGUSR1") == 1
    assert Path(record["folder"], "exit_code").read_text() == "0\n"
    stages = sorted(one.manifest.stage for one in published(trained).values())
    assert stages == ["checkpoint", "evaluate", "evaluate", "label", "recover", "rollout", "update"]


def test_what_is_done_is_not_submitted(trained: Path, student: Path, tmp_path: Path) -> None:
    done = run(config_of(trained, student, name=NAME), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all 6 stages are done" in done.stdout
    assert len(records(trained)) == 1


def test_a_job_a_stage_gives_the_same_artifacts(trained: Path, student: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    config = config_of(root, student, name=NAME)
    done = run(config, tmp_path / "home", "--per-stage")
    assert done.returncode == 0, done.stdout + done.stderr
    contents = {path: one.manifest.content_digest for path, one in published(root).items()}
    assert contents == {path: one.manifest.content_digest for path, one in published(trained).items()}
    jobs = {record["name"]: record for record in records(root)}
    assert sorted(jobs) == [
        "evaluate-0000", "evaluate-0001", "label-0000", "recover-0000", "rollout-0000", "update-0000",
    ]  # fmt: skip
    assert jobs["rollout-0000"]["job"] in jobs["label-0000"]["after"]
    assert jobs["update-0000"]["job"] in jobs["evaluate-0001"]["after"]
    assert all(record["ended"].startswith("done") for record in jobs.values())


def test_a_stage_again_with_other_settings(trained: Path, tmp_path: Path) -> None:
    before = published(trained)
    command = [sys.executable, "-m", "flows.cli", "stage", "label", f"--run={trained}/{NAME}"]
    command += [
        "--iteration=0",
        "--only",
        "--to=slurm",
        "teacher.max_candidates=1",
        "launch.slurm.poll_s=0.5",
    ]
    done = subprocess.run(
        command, cwd=source(), env=environment_of(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "label-0000: slurm job" in done.stdout
    new = {path: one for path, one in published(trained).items() if path not in before}
    assert [one.manifest.stage for one in new.values()] == ["label"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_who_stops_waiting_cancels_the_job(
    student: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    root, home = tmp_path / "root", tmp_path / "home"
    waiting = start(config_of(root, student, name="cancelled"), home)
    wait_until(lambda: running(root), PATIENCE_S)
    waiting.send_signal(number)
    done = finish(waiting)
    assert done.returncode == code, done.stderr
    job = records(root)[0]["job"]
    assert f"job {job} cancelled" in done.stdout
    wait_until(lambda: word(job) == "CANCELLED", PATIENCE_S)
    wait_until(lambda: not processes_of(home), PATIENCE_S)


def test_a_detached_job_goes_on_and_can_be_cancelled_by_hand(student: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    root, home = tmp_path / "root", tmp_path / "home"
    config = config_of(root, student, name="detached")
    assert run(config, home, "--detach").returncode == 0
    job = records(root)[0]["job"]
    assert word(job) in ("PENDING", "RUNNING", "CONFIGURING")
    waiting = start(config, home)
    assert waiting.stdout is not None
    assert f"slurm job {job} found" in waiting.stdout.readline()
    wait_until(lambda: published(root), PATIENCE_S)
    subprocess.run(["scancel", job], check=True)
    done = finish(waiting)
    assert done.returncode == 9
    assert f"job {job} (train) was cancelled" in done.stderr
    wait_until(lambda: not processes_of(home), PATIENCE_S)
    tracked = MlflowClient(f"sqlite:///{root}/mlflow.db")
    runs = tracked.search_runs([one.experiment_id for one in tracked.search_experiments()])
    assert {one.data.tags["pivotopd.run_uri"]: one.info.status for one in runs}[
        f"{root}/detached"
    ] == "KILLED"


def test_slurm_refuses_what_the_site_has_not(student: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path / "root", student, name="refused")
    done = run(config, tmp_path / "home", "launch.resources.partition=nowhere")
    assert done.returncode == 2
    assert "error: SLURM refuses the job" in done.stderr
    assert "invalid partition" in done.stderr
