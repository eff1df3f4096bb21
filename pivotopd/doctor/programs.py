"""Programs that are found on PATH or beside this Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ANSWER_S = 20


def found(program: str) -> str:
    """Return a program's path; FileNotFoundError where there is none."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which(program) or shutil.which(program, path=beside)
    if path is None:
        raise FileNotFoundError(f"no {program} on PATH")
    return path


def first_line(program: str, *arguments: str) -> str:
    """Run a program and return the first line that it prints.

    Raises:
        RuntimeError: It fails; the last line of its complaint is told.
    """
    path = found(program)
    done = subprocess.run(  # noqa: S603 - fixed programs
        [path, *arguments], capture_output=True, text=True, check=False, timeout=ANSWER_S
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise RuntimeError(f"{program} ended with code {done.returncode}: {said}")
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else path
