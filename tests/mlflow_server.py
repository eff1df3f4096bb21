"""A real MLflow server for tests: metrics in sqlite, artifacts in a bucket whose keys it alone holds."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.child_process import end_with_parent
from tests.s3_server import REQUIRED, environment, free_ports

START_S = 600.0
"""So that a server that never answers fails its tests; a first start takes a minute on crowded cores."""


def require_boto3() -> None:
    """Skip, or fail where the services are required, if a server here could not reach its bucket."""
    if importlib.util.find_spec("boto3") is None:
        reason = "MLflow has no boto3: pip install -r infra/requirements/services.txt"
        if os.environ.get(REQUIRED, "0") not in ("", "0"):
            pytest.fail(f"{REQUIRED} is set, but: {reason}", pytrace=False)
        pytest.skip(reason)


@dataclass
class MlflowServer:
    """A server in a process group of its own, on the same port and data for all its starts.

    Attributes:
        folder: Its database and its log.
        s3_url: Address of the S3 server that holds the artifacts.
        keys: Variables with which it reaches that server, where the usual ones do not do.
        port: Its port.
    """

    folder: Path
    s3_url: str
    keys: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start it; it answers after :meth:`wait`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "mlflow", "server",
            "--backend-store-uri", f"sqlite:///{self.folder.absolute()}/server.db",
            "--artifacts-destination", "s3://tests/mlflow", "--serve-artifacts",
            "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
        ]  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        variables = {
            "MLFLOW_S3_ENDPOINT_URL": self.s3_url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nine processes for work that nobody asks for
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=kept | environment(self.s3_url) | variables | dict(self.keys),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError) as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                    raise RuntimeError(f"the MLflow server: {error}\n{tail}") from error
            time.sleep(0.5)

    def stop(self) -> None:
        """Kill it and its workers; what it has acknowledged stays for another start."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
