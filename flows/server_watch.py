"""Prefect's temporary server ends with its flow, also when the flow's process is killed outright.

Prefect stops that server when the interpreter exits, which SIGKILL (the kernel, out of memory) does not let
happen. So a watcher, a small process of its own, waits for the end of this one and then ends what carries its
mark. Run as a program, this file is the watcher; it needs /proc, and elsewhere none is started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "PIVOTOPD_SERVER_MARK"
"""Variable that the server inherits; its value belongs to one process."""
_EPHEMERAL = b"PREFECT__SERVER_EPHEMERAL=1"
_PROC = Path("/proc")
_PATIENCE_S = 5.0
_watchers: list[subprocess.Popen[bytes]] = []
"""Kept, since a forgotten one would have its pipe closed."""


def watch_server() -> None:
    """Start the watcher of this process; a second call does nothing."""
    if _watchers or not (_PROC / "self/environ").exists():
        return
    mark = os.environ[MARK] = f"{os.getpid()}-{time.time_ns()}"
    # Its standard input is a pipe that only this process holds, and nothing is ever written to it.
    watcher = subprocess.Popen(  # noqa: S603 - this file
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C on a terminal is not for it
    )
    _watchers.append(watcher)


def marked_servers(mark: str) -> list[int]:
    """Return the process ids of Prefect's temporary servers that carry a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # another user's, or gone
            if wanted in environment and _EPHEMERAL in environment:
                found.append(int(folder.name))
    return found


def _end_servers(mark: str) -> None:
    """End the servers of a mark, gently first; two empty looks in a row, for one that is just starting."""
    deadline, empty = time.monotonic() + _PATIENCE_S, 0
    while empty < 2:
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        servers = marked_servers(mark)
        for server in servers:
            try:
                os.kill(server, number)
            except ProcessLookupError:
                continue
        empty = 0 if servers else empty + 1
        time.sleep(0.5)


if __name__ == "__main__":
    sys.stdin.read()
    _end_servers(sys.argv[1])
