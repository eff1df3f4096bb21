"""Where DeepSpeed's compiled operators are kept, and a folder of them that a killed process cannot block.

torch marks a compilation by a file ``lock`` and waits for it to go: for ever, where its owner was killed.
A process that compiles or loads here also holds a shared lock of the operating system, which ends with it. If
nobody holds one, a ``lock`` that is there was left behind.
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
def using(folder: Path) -> Iterator[None]:
    """Compile or load operators inside; what a killed process left behind is cleared before.

    Args:
        folder: The folder of operators, of this project alone.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".in_use").open("w") as handle:
        with contextlib.suppress(BlockingIOError):  # somebody is at work: the file may be theirs
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in folder.glob("*/lock"):
                left.unlink(missing_ok=True)
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
