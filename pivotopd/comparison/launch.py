"""Runs as processes of their own: each with its log, ended together when the comparison is asked to stop.

Runs that begin with the same warm start do not make it twice: the first one makes it, and the others that
need it wait until it is published.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

POLL_S = 0.5
PATIENCE_S = 60.0
"""How long a run that was asked to stop may take to leave a resumable state; then it is killed."""
STOPPED = 75
"""Exit code of a run that was not started because the comparison is stopping; as of one asked to stop."""


@dataclass(frozen=True, slots=True)
class Start:
    """The warm start that a run begins with.

    Attributes:
        digest: Digest of the work; runs with equal ones share it.
        published: Says whether it is there.
    """

    digest: str
    published: Callable[[], bool]


@dataclass
class Launcher:
    """Starts runs and waits for them; used from one thread a run.

    As a context, it ends what still runs when it is left.

    Args:
        environment: Variables of the processes.
    """

    environment: Mapping[str, str]
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _makers: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    _change: threading.Lock = field(default_factory=threading.Lock)
    _stopping: bool = False

    @property
    def stopping(self) -> bool:
        """Nothing more is started."""
        return self._stopping

    def run(self, command: Sequence[str], log: Path, start: Start | None) -> int:
        """Run a command to its end and return its exit code; a signal's number is negative.

        Args:
            command: The command line.
            log: File that takes its output, after what earlier tries left there.
            start: Its warm start, if it needs one.
        """
        if start is None or start.published():
            process = self._start(command, log)
        else:
            with self._maker(start.digest):
                process = self._start(command, log)
                while process is not None and process.poll() is None and not start.published():
                    time.sleep(POLL_S)
        if process is None:
            return STOPPED
        code = process.wait()
        with self._change:
            self._running.discard(process)
        return code

    def stop(self) -> None:
        """Start nothing more, ask what runs to stop, and kill what has not after a while."""
        with self._change:
            self._stopping = True
            running = list(self._running)
        for process in running:
            process.terminate()
        deadline_s = time.monotonic() + PATIENCE_S
        for process in running:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _maker(self, digest: str) -> threading.Lock:
        with self._change:
            return self._makers[digest]

    def _start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes] | None:
        with self._change:
            if self._stopping:
                return None
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                process = subprocess.Popen(  # noqa: S603 - our own command line
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.environment},
                    start_new_session=True,  # Ctrl-C reaches the comparison, which then stops its runs
                )
            self._running.add(process)
            return process


def last_line(log: Path) -> str:
    """Return the last line of a log that says something, or an empty text."""
    return next((line.strip() for line in reversed(_last_lines(log)) if line.strip()), "")


def error_line(log: Path) -> str:
    """Return the last line in which a log tells of an error, or else its last line."""
    told = [line for line in _last_lines(log) if line.startswith("error: ")]
    return told[-1] if told else last_line(log)


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            return stream.read().decode(errors="replace").split("\n")
    except OSError:
        return []
