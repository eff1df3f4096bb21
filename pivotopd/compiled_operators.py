"""Where DeepSpeed's compiled operators are kept, and a folder of them that a killed process cannot block.

torch marks a compilation by a file ``lock`` and waits for it to go: for ever, where its owner was killed.
Processes therefore compile or load here one after the other, under a lock of the operating system that ends
with its owner. Whoever holds it knows that a ``lock`` that is there was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch


def extensions_folder() -> Path:
    """Return where compiled operators are kept: in the user's cache, apart for each installation.

    Ninja compiles anew when a path of the compiler's command changes, so two environments that share a folder
    would undo each other's work at every start.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    versions = f"torch-{torch.__version__}-deepspeed-{importlib.metadata.version('deepspeed')}"
    place = hashlib.sha256(f"{sys.prefix} {torch.__file__}".encode()).hexdigest()[:8]
    return Path(base) / "pivotopd" / "torch_extensions" / f"{versions}-{place}"


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Compile or load operators inside, alone; what a killed process left behind is cleared before.

    Nothing that waits for another rank may stand inside: that rank may be waiting for its turn.

    Args:
        folder: The folder of operators, of this project alone.

    Raises:
        OSError: The folder cannot be made, written or locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".in_use").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in folder.glob("*/lock"):
            left.unlink(missing_ok=True)
        yield
