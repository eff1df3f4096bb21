"""A real SLURM of one node for tests, where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = "PIVOTOPD_REQUIRE_SLURM"
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "slurmctld", "slurmd", "munged")


@contextmanager
def slurm_node() -> Iterator[Path]:
    """Start SLURM and yield its configuration file; skip, or fail where it is required, if that cannot be."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        _absent(f"no SLURM here ({', '.join(missing)} missing): bash infra/slurm/install.sh")
    folder = tempfile.mkdtemp(prefix="slurm-")  # short: the path of a socket has at most 107 bytes
    control = ["bash", str(ROOT / "infra/slurm/one_node.sh")]
    started = subprocess.run([*control, "start", folder], capture_output=True, text=True, check=False)
    try:
        if started.returncode:
            _absent(f"SLURM does not start here: {started.stderr.strip()[-300:]}")
        yield Path(folder) / "slurm.conf"
    finally:
        subprocess.run([*control, "stop", folder], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _absent(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason} ({REQUIRED}=1)")
    pytest.skip(reason)
