"""Settings of the SLURM launcher."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pivotopd.launch.base import Line, Word
from pivotopd.section import Positive, Section, WholeNumber


def _option(value: str) -> str:
    """Refuse what is no option of sbatch on one line."""
    if not re.fullmatch(r"--[a-z][a-z0-9-]*(=.+)?", value) or not value.isprintable():
        raise ValueError("write an option of sbatch, such as --exclusive or --licenses=name:1")
    return value


def _mount(value: str) -> str:
    """Refuse a mount that would be taken for several, or for an option."""
    if not value.startswith("/") or not value.isprintable() or any(mark in value for mark in ",:"):
        raise ValueError("give an absolute path without comma or colon")
    return value


class SlurmSection(Section):
    """How jobs are handed to SLURM. Nothing of it enters a digest."""

    qos: Word | None = None
    """Quality of service."""
    options: tuple[Annotated[str, AfterValidator(_option)], ...] = ()
    """Further options of sbatch, such as `--exclusive`."""
    setup: str = ""
    """Lines of shell before the command, such as `module load cuda`."""
    python: Line | None = None
    """Python of the jobs; null takes the one that submits, and in a container `python`."""
    container: Literal["apptainer", "enroot", "pyxis"] = "apptainer"
    """What runs `image`, where one is given."""
    mounts: tuple[Annotated[str, AfterValidator(_mount)], ...] = ()
    """Further folders that a container sees, at the same path."""
    variables: tuple[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Names of variables that enroot passes on; the other two pass on all. Values stand in no file."""
    stop_ahead_s: Annotated[int, Field(ge=1, le=65_535)] = 120
    """Seconds before the time limit at which a job stops at a safe point; SLURM may be a minute early."""
    requeues: WholeNumber = 100
    """Most times that a job which was stopped for its time limit goes on by itself."""
    folder: Line | None = None
    """Shared folder for logs and exit codes; null takes the run's, which must then be no bucket."""
    poll_s: Positive = 5.0
    """Seconds between questions to SLURM."""
    patience_s: Positive = 1800.0
    """How long SLURM may be out of reach before the waiting command gives up; jobs stay."""
    vanished_s: Positive = 60.0
    """How long a job may be unknown to SLURM, without exit code, before it counts as lost."""
