"""A real MLflow server for tests: metrics in sqlite, artifacts in a bucket whose keys it alone holds."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from tests.s3_server import REQUIRED, environment
from tests.servers import StartedServer, free_ports, healthy


def require_boto3() -> None:
    """Skip, or fail where the services are required, if a server here could not reach its bucket."""
    if importlib.util.find_spec("boto3") is None:
        reason = "MLflow has no boto3: pip install -r infra/requirements/services.txt"
        if os.environ.get(REQUIRED, "0") not in ("", "0"):
            pytest.fail(f"{REQUIRED} is set, but: {reason}", pytrace=False)
        pytest.skip(reason)


@dataclass
class MlflowServer(StartedServer):
    """The server.

    Attributes:
        s3_url: Address of the S3 server that holds the artifacts.
        keys: Variables with which it reaches that server, where the usual ones do not do.
        port: Its port.
    """

    NAME: ClassVar[str] = "MLflow"

    s3_url: str
    keys: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "mlflow", "server",
            "--backend-store-uri", f"sqlite:///{self.folder.absolute()}/server.db",
            "--artifacts-destination", "s3://tests/mlflow", "--serve-artifacts",
            "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
        ]  # fmt: skip

    def variables(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        own = {
            "MLFLOW_S3_ENDPOINT_URL": self.s3_url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nine processes for work that nobody asks for
        }
        return kept | environment(self.s3_url) | own | dict(self.keys)

    def answers(self) -> bool:
        return healthy(f"{self.url}/health")
