"""An empty database of Prefect, migrated once a checkout: its migrations take a start of Prefect some 5 s."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "prefect.db"


def lay_database(home: Path) -> None:
    """Put an empty database into a Prefect home that has none."""
    if not (home / NAME).exists():
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(empty_database(), home / NAME)


def empty_database() -> Path:
    """Return the database's file; of several processes one makes it and the others wait."""
    folder = ROOT / ".cache" / "tests" / f"prefect-{version('prefect')}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "prefect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            half = folder.with_name(f"half-prefect-{os.getpid()}")
            kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
            subprocess.run(
                [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"],
                env=kept | {"PREFECT_HOME": str(half)},
                capture_output=True,
                check=True,
            )
            half.rename(folder)
    return folder / NAME
