"""What SLURM's answers mean: states with and without accounts, refusals, a controller that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.errors import ClusterError, ConfigError
from pivotopd.launch.base import Needed, State, Task
from pivotopd.launch.slurm import Slurm
from pivotopd.launch.slurm_section import SlurmSection
from tests.launch.fake_slurm import FakeSlurm

LAUNCHER = Slurm(SlurmSection(), workdir="/")
AWAY = "squeue: error: Unable to contact slurm controller (connect failure)"


def task(*after: str) -> Task:
    return Task("recover-0003", "ab" * 32, ("-m", "stages.recover"), Needed(), after)


def test_a_submission_names_the_job_and_what_it_waits_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answer("sbatch", "12;cluster\n")
    assert LAUNCHER.submit(task("3", "5"), "/f", "recover-0003-ab12") == "12"
    assert slurm.calls("sbatch") == [
        "--parsable --job-name=recover-0003-ab12 --dependency=afterok:3:5 --kill-on-invalid-dep=yes /f/job.sh"
    ]


def test_variables_of_a_job_around_this_process_do_not_reach_the_new_one(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = slurm.folder / "sbatch"
    program.write_text(f"#!/bin/bash\nenv >{slurm.folder}/env\necho 7\n")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("TEACHER_KEY", "kept")
    LAUNCHER.submit(task(), "/f", "t")
    seen = (slurm.folder / "env").read_text().splitlines()
    assert "SLURM_CONF=/etc/slurm/slurm.conf" in seen
    assert "TEACHER_KEY=kept" in seen
    assert not any(line.startswith("SLURM_MEM_PER_CPU") for line in seen)


def test_a_refusal_says_what_slurm_said(slurm: FakeSlurm) -> None:
    slurm.answer("sbatch", err="sbatch: error: invalid partition specified: gpuu\n", code=1)
    with pytest.raises(ConfigError, match="invalid partition specified: gpuu") as caught:
        LAUNCHER.submit(task(), "/f", "t")
    assert caught.value.where == "/f/job.sh"


def test_a_controller_that_is_away_is_no_refusal(slurm: FakeSlurm) -> None:
    slurm.answer("sbatch", err="sbatch: error: Batch job submission failed: Unable to contact slurm", code=1)
    with pytest.raises(ClusterError, match="does not answer"):
        LAUNCHER.submit(task(), "/f", "t")


def test_without_slurm_here_the_mend_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch is not on PATH"):
        LAUNCHER.submit(task(), "/f", "t")


@pytest.mark.parametrize(
    ("queue", "left", "state"),
    [
        ("PENDING|Priority", None, State("waiting", reason="Priority")),
        ("PENDING|BeginTime", "75", State("waiting", reason="BeginTime")),  # requeued by SLURM itself
        ("PENDING|DependencyNeverSatisfied", None, State("cancelled", reason="DependencyNeverSatisfied")),
        ("RUNNING|None", None, State("running")),
        ("COMPLETING|None", None, State("running")),
        ("COMPLETING|None", "75", State("running")),
        ("COMPLETING|None", "0", State("done", 0, "COMPLETING")),
        ("COMPLETED|None", "0", State("done", 0, "COMPLETED")),
        ("COMPLETED|None", None, State("done", 0, "COMPLETED")),
        ("FAILED|NonZeroExitCode", "3", State("failed", 3, "FAILED")),
        ("FAILED|NonZeroExitCode", None, State("failed", None, "FAILED")),
        ("TIMEOUT|TimeLimit", None, State("failed", None, "TIMEOUT")),
        ("NODE_FAIL|None", None, State("failed", None, "NODE_FAIL")),
        ("OUT_OF_MEMORY|OutOfMemory", None, State("failed", None, "OUT_OF_MEMORY")),
        ("CANCELLED|None", "75", State("cancelled", 75, "CANCELLED")),
        ("CANCELLED|None", None, State("cancelled", None, "CANCELLED")),
    ],
)
def test_states_of_the_queue(
    slurm: FakeSlurm, tmp_path: Path, queue: str, left: str | None, state: State
) -> None:
    slurm.answer("squeue", queue + "\n")
    if left is not None:
        (tmp_path / "exit_code").write_text(left + "\n")
    assert LAUNCHER.state(str(tmp_path), "7") == state


@pytest.mark.parametrize(
    ("left", "phase"), [("0", "done"), ("5", "failed"), ("75", "failed"), (None, "lost")]
)
def test_a_job_that_the_queue_has_forgotten(
    slurm: FakeSlurm, tmp_path: Path, left: str | None, phase: str
) -> None:
    if left is not None:
        (tmp_path / "exit_code").write_text(left)
    state = LAUNCHER.state(str(tmp_path), "7")
    assert (state.phase, state.exit_code) == (phase, None if left is None else int(left))


@pytest.mark.parametrize(
    ("accounts", "state"),
    [
        ("COMPLETED|0:0", State("done", 0, "COMPLETED")),
        ("FAILED|3:0", State("failed", 3, "FAILED")),
        ("NODE_FAIL|1:0", State("failed", None, "NODE_FAIL")),
        ("CANCELLED by 1000|0:15", State("cancelled", None, "CANCELLED by 1000")),
        ("TIMEOUT|0:0", State("failed", None, "TIMEOUT")),
    ],
)
def test_accounts_tell_of_a_forgotten_job(
    slurm: FakeSlurm, tmp_path: Path, accounts: str, state: State
) -> None:
    slurm.answer("sacct", accounts + "\n")
    assert LAUNCHER.state(str(tmp_path), "7") == state


def test_a_controller_that_is_away_hides_a_state_but_not_a_finished_job(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.answer("squeue", err=AWAY, code=1)
    for left in (None, "75"):
        if left is not None:
            (tmp_path / "exit_code").write_text(left)
        with pytest.raises(ClusterError):
            LAUNCHER.state(str(tmp_path), "7")
    (tmp_path / "exit_code").write_text("0")
    assert LAUNCHER.state(str(tmp_path), "7").phase == "done"


def test_a_submission_that_nobody_saw_is_found_by_its_start_or_in_the_queue(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.answer("squeue", "")
    assert LAUNCHER.find(str(tmp_path), "t-1") is None
    slurm.answer("squeue", "9\n")
    assert LAUNCHER.find(str(tmp_path), "t-1") == "9"
    assert "--name=t-1" in slurm.calls("squeue")[-1]
    (tmp_path / "started").write_text("8\n")
    assert LAUNCHER.find(str(tmp_path), "t-1") == "8"


def test_cancelling_a_job_that_has_ended_is_no_error(slurm: FakeSlurm) -> None:
    slurm.answer("scancel", err="scancel: error: Invalid job id 7", code=1)
    LAUNCHER.cancel("7")
    slurm.answer("scancel", err="scancel: error: Unable to contact slurm controller", code=1)
    with pytest.raises(ClusterError):
        LAUNCHER.cancel("7")
