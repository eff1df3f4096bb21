"""Processes that tests start: servers end with the tests, however those end; an engine's are found."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def end_with_parent() -> None:
    """Ask for SIGTERM when the tests' process dies (prctl(2)): a killed test run leaves no server."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread, whatever it waits for, once so many seconds are over."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TimeoutError(f"waited for {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wait_until(holds: Callable[[], object], patience_s: float, what: str = "") -> None:
    """Wait until something holds; AssertionError where it does not in time."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def engines_of(process: int) -> list[int]:
    """Return the ids of a process's vLLM processes that have not ended: the engine, then its workers."""
    found, parents = [], [process]
    while parents:
        children = [one for one in _spawned() if one[1] in parents]
        parents = [one for one, _ in children]
        found += parents
    return found


def _spawned() -> list[tuple[int, int]]:
    """Return id and parent of all processes that vLLM named or Python spawned, and that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if state not in "ZX" and (b"VLLM" in command or b"spawn_main" in command):
            found.append((int(folder.name), int(parent)))
    return found


def lives(process: int) -> bool:
    """Tell whether a process has not ended; where nobody reaps an orphan, its entry stays."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
