"""``python -m pivotopd.launch.srun``: its job ends with it, by SLURM where that can be, else by srun."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pivotopd.errors import ConfigError
from pivotopd.launch.srun import run
from tests.child_process import wait_until
from tests.launch.fake_slurm import FakeSlurm, fake_slurm

PATIENCE_S = 60
SRUN = """#!/bin/bash
here={folder}
printf '%s\\n' "$*" >>"$here/srun.calls"
trap 'exit 137' TERM
trap 'exit 3' USR1
printf '%s\\n' "$$" >"$here/srun.pid"
while true; do sleep 0.1; done
"""
SCANCEL = """#!/bin/bash
here={folder}
printf '%s\\n' "$*" >>"$here/scancel.calls"
kill -USR1 "$(cat "$here/srun.pid")"
"""
"""What SLURM does to the job's program, which then ends with a code of its own."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = fake_slurm(tmp_path / "slurm", monkeypatch)
    for name, text in (("srun", SRUN), ("scancel", SCANCEL)):
        (slurm.folder / name).write_text(text.format(folder=slurm.folder))
        (slurm.folder / name).chmod(0o755)
    return slurm


def stopped(slurm: FakeSlurm, before: Callable[[str], None]) -> int:
    """Start it, ask it to stop after ``before`` was called with the job's comment; return its code."""
    process = subprocess.Popen([sys.executable, "-m", "pivotopd.launch.srun", "--mem=1G", "train"])
    wait_until((slurm.folder / "srun.pid").exists, PATIENCE_S)
    [call] = slurm.calls("srun")
    comment, _, rest = call.partition(" ")
    assert rest == "--mem=1G train"
    before(comment.removeprefix("--comment="))
    process.terminate()
    return process.wait(PATIENCE_S)


def test_slurm_cancels_the_job_that_has_its_comment(slurm: FakeSlurm) -> None:
    code = stopped(slurm, lambda comment: slurm.answer("squeue", f"7|another|\n8|{comment}|\n9|(null)|\n"))
    assert code == 3, "the program's own"
    assert slurm.calls("scancel") == ["8"]


def test_srun_ends_where_no_job_is_found(slurm: FakeSlurm) -> None:
    assert stopped(slurm, lambda _comment: slurm.answer("squeue", "7|another|\n")) == 137
    assert slurm.calls("scancel") == []


def test_srun_ends_where_slurm_does_not_answer(slurm: FakeSlurm) -> None:
    error = "slurm_load_jobs error: Unable to contact slurm controller"
    assert stopped(slurm, lambda _comment: slurm.answer("squeue", err=error, code=1)) == 137


def test_an_srun_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="srun is not installed here"):
        run(["true"])
