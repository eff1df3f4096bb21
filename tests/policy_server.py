"""Servers that tests start as a person does: ``pivotopd serve policy|teacher``, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.child_process import end_with_parent
from tests.flows.runs import environment_of, source


@dataclass
class ServerProcess:
    """A server of a policy or a teacher.

    Args:
        subject: Model folder or run.
        home: Folder for what its libraries keep.
        overrides: Settings.
        role: What it serves.
    """

    subject: str
    home: Path
    overrides: tuple[str, ...] = ()
    role: str = "policy"
    url: str = ""

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "flows.cli", "serve", self.role, self.subject, "--port", "0",
                *self.overrides,
            ],
            cwd=source(),
            env=environment_of(self.home),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
        )  # fmt: skip

    def wait(self) -> str:
        """Return the address once it is announced."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " is served at http://127.0.0.1:" in line, line
        self.url = line.split()[-1]
        return self.url

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
