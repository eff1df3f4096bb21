"""A real Prefect server and worker on loopback, from a copy of the repository, with a home of their own."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from tests.flows.runs import PATIENCE_S, ROOT, environment_of, source
from tests.servers import free_ports

T = TypeVar("T")
MARK = "PIVOTOPD_TEST_WORKER"
"""Variable that a worker and all its processes carry, and the server does not."""


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """Return what a look finds, once it finds anything."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.3)
    return found


def project(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy what ``prefect deploy`` needs, with changes to prefect.yaml."""
    shutil.copytree(source(), folder)
    for name in ("configs", "infra"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".prefectignore", folder)
    content = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    change(content)
    (folder / "prefect.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return folder


@contextmanager
def reporting_to(url: str) -> Iterator[Any]:
    """Yield a client of a server, to which flows of this process report until the end, as in a worker's.

    What Prefect keeps in this process for events and logs goes with it: it would send those of the next
    server's flows to this one. Their lines are sent also where a test before has made Prefect quiet.
    """
    from prefect.client.orchestration import get_client
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_API_URL, temporary_settings

    lines = logging.getLogger("prefect.flow_runs")
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        before = lines.level
        lines.setLevel(logging.INFO)
        try:
            yield client
        finally:
            lines.setLevel(before)
            EventsWorker.drain_all()
            APILogWorker.drain_all()


@dataclass
class Platform:
    """A server, and the workers that were started on it.

    Args:
        project: Copy of the repository.
        home: Folder for databases and logs.
    """

    project: Path
    home: Path
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a person who uses this server."""
        return environment_of(self.home) | {
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_WORKER_QUERY_SECONDS": "5",
            # So that a schedule that was switched on is seen soon.
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",
            "PYTHONPATH": os.pathsep.join([str(self.project), os.environ.get("PYTHONPATH", "")]),
        }

    def start_server(self) -> None:
        """Start a server with a new database and wait until it answers."""
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/api"
        environment = {name: value for name, value in self.environment.items() if name != "PREFECT_API_URL"}
        self._start("server", ["server", "start", "--port", str(port)], environment)
        wait_for(self._healthy, f"no Prefect server at {self.url}")

    def start_worker(self, mark: str, pool: str = "pivotopd", **variables: str) -> None:
        """Start a worker of a pool, with its mark and other variables."""
        self._start(
            mark,
            ["worker", "start", "--pool", pool, "--name", mark],
            self.environment | {MARK: mark} | variables,
        )

    def prefect(self, *arguments: str) -> str:
        """Run a command of Prefect as a person does, in the project."""
        return self.run([sys.executable, "-m", "prefect", *arguments])

    def run(self, command: list[str]) -> str:
        """Run a command in the project and return its output."""
        done = subprocess.run(
            command, cwd=self.project, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        """Kill everything that was started."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        kill(marked(str(self.home)))

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        with (self.home / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "prefect", *arguments],
                    cwd=self.project,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _healthy(self) -> bool:
        assert self.processes[-1].poll() is None, (self.home / "server.log").read_text()
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


def marked(mark: str) -> dict[int, str]:
    """Return process ids and command lines of living processes whose environment has a mark in it."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command and int(folder.name) != os.getpid():
                    found[int(folder.name)] = command
        except OSError:
            continue
    return found


def kill(processes: Iterable[int]) -> None:
    """Kill processes outright."""
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
