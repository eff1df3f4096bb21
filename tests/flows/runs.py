"""Starts ``pivotopd`` as a person does: another process, its own Prefect home, no terminal."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from tests.prefect_database import lay_database

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "stages", "pivotopd")
PATIENCE_S = 600
"""So that a hung run fails its test."""


@cache
def source() -> Path:
    """Return a copy of the packages: an edit while a test runs would give its later runs other digests."""
    copied = Path(tempfile.mkdtemp(prefix="pivotopd-source-"))
    atexit.register(shutil.rmtree, copied, ignore_errors=True)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


def environment_of(home: Path) -> dict[str, str]:
    """Return an environment without the user's Prefect or MLflow server; Prefect's home is laid ready."""
    lay_database(home / "prefect")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return kept | {"PREFECT_HOME": str(home / "prefect"), "OMP_NUM_THREADS": "1"}


def start(config: RunConfig, home: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``pivotopd train`` in a process group of its own."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "config.yaml"
    file.write_text(dump_config(config))
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "train", str(file), *arguments],
        cwd=source(),
        env=environment_of(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a started run."""
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def train(config: RunConfig, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``pivotopd train`` to its end."""
    return finish(start(config, home, *arguments))


def processes_of(home: Path) -> list[str]:
    """Return the command lines of the processes that were started with a Prefect home."""
    wanted = f"PREFECT_HOME={home / 'prefect'}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
