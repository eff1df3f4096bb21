"""SLURM's programs as small scripts on PATH: they answer what a test has written into a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

_PROGRAM = """#!/bin/bash
here={folder}
printf '%s\\n' "$*" >>"$here/{name}.calls"
cat "$here/{name}.out" 2>/dev/null
cat "$here/{name}.err" >&2 2>/dev/null
exit "$(cat "$here/{name}.code" 2>/dev/null || echo 0)"
"""


@dataclass(frozen=True)
class FakeSlurm:
    """What the programs answer, and how they were called."""

    folder: Path

    def answer(self, program: str, out: str = "", *, err: str = "", code: int = 0) -> None:
        for ending, text in (("out", out), ("err", err), ("code", str(code))):
            (self.folder / f"{program}.{ending}").write_text(text)

    def calls(self, program: str) -> list[str]:
        file = self.folder / f"{program}.calls"
        return file.read_text().splitlines() if file.exists() else []

    def vanish(self) -> None:
        """The queue knows no job, and there are no accounts."""
        self.answer("squeue", err="slurm_load_jobs error: Invalid job id specified", code=1)
        self.answer("sacct", err="Slurm accounting storage is disabled", code=1)


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct"):
        program = folder / name
        program.write_text(_PROGRAM.format(folder=folder, name=name))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    slurm = FakeSlurm(folder)
    slurm.answer("sbatch", "7")
    slurm.answer("scancel")
    slurm.vanish()
    return slurm
