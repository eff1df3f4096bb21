"""Servers that tests start as processes: the same ports and data for all starts, ended with the tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import pytest

from tests.child_process import end_with_parent

PATIENCE_S: Final = float(os.environ.get("PIVOTOPD_TEST_PATIENCE_S", "600"))
"""So that a server that never answers fails its tests; one needs some seconds, on crowded cores a minute."""
_LOOK_S: Final = 0.3
_TAIL_LINES: Final = 25


@dataclass
class StartedServer(ABC):
    """A server in a process group of its own.

    Attributes:
        folder: Its home and its log.
    """

    NAME: ClassVar[str]

    folder: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts it."""

    def variables(self) -> Mapping[str, str]:
        """Return its environment."""
        return os.environ

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether it takes requests; OSError where it cannot be asked."""

    def start(self) -> None:
        """Start it; it answers after :meth:`wait`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.stop()
                what = "does not answer" if ended is None else f"ended with {ended}"
                pytest.fail(f"the {self.NAME} server {what}\n{tail(self.log)}", pytrace=False)
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """Kill it and its own processes; what it has acknowledged stays for another start."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _ready(self) -> bool:
        try:
            return self.answers()
        except OSError:
            return False


def healthy(url: str) -> bool:
    """Tell whether an address answers with status 200; OSError where nobody does."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bool(answer.status == 200)


def tail(file: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log, under its name."""
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        text = f"({error.strerror})"
    return f"--- {file}\n" + "\n".join(text.splitlines()[-lines:])


def free_ports(count: int) -> list[int]:
    """Return ports at which nothing listens, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
