"""What tests of Kubernetes need: kubectl, a strict validator, and a fake of the API server.

The fake speaks the API's paths, verbs and errors, as far as our client uses them. It schedules nothing and
runs no pod: it is a check of the client, not a cluster.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

REQUIRED = "PIVOTOPD_REQUIRE_KUBERNETES"
"""Set to 1, a missing tool is a failure: a build server cannot skip these tests unnoticed."""
VERSION = "1.37.0"


def missing(what: str) -> None:
    reason = f"{what}: pip install -c requirements.lock -r infra/requirements/services.txt"
    if os.environ.get(REQUIRED, "0") not in ("", "0"):
        pytest.fail(f"{REQUIRED} is set, but {reason}")
    pytest.skip(reason)


def program(name: str) -> str:
    """Return the path of a program beside this Python; skip, or fail if it is required, where it is missing.

    Not any program of that name: some that are called kubectl first ask the server for its version.
    """
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        missing(f"there is no {name}")
    return str(path)


def module(name: str) -> Any:
    """Return a package; skip, or fail if it is required, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return missing(f"{name} is not installed")


def objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one is not None]


def kustomize(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [program("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def validate(one: dict[str, Any]) -> None:
    """Refuse what is not valid: built-in kinds by the published schemas, others by what we know of them."""
    own = {"JobSet": validate_job_set, "LocalQueue": validate_queue}
    if one["kind"] in own:
        own[one["kind"]](one)
    else:
        module("kubernetes_validate").validate(one, VERSION, strict=True)


def validate_job_set(one: dict[str, Any]) -> None:
    """JobSet's shape (v1alpha2); the Jobs inside are checked as Jobs."""
    assert one["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert set(one) == {"apiVersion", "kind", "metadata", "spec"}
    spec = one["spec"]
    known = {
        "ttlSecondsAfterFinished",
        "failurePolicy",
        "successPolicy",
        "network",
        "replicatedJobs",
        "suspend",
    }
    assert set(spec) <= known
    assert spec["failurePolicy"] == {"maxRestarts": 0}
    assert spec["successPolicy"] == {"operator": "All"}
    assert set(spec["network"]) <= {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"}
    names = [job["name"] for job in spec["replicatedJobs"]]
    assert len(names) == len(set(names)) > 0
    for job in spec["replicatedJobs"]:
        assert set(job) == {"name", "replicas", "template"}
        last = job["template"]["spec"]["completions"] - 1
        host = f"{one['metadata']['name']}-{job['name']}-{job['replicas'] - 1}-{last}"
        assert len(host) <= 63, "the pods' host names"
        inner = {"apiVersion": "batch/v1", "kind": "Job", **job["template"]}
        inner["metadata"] = {"name": "inner", **inner["metadata"]}
        validate(inner)


def validate_queue(one: dict[str, Any]) -> None:
    assert one["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert set(one["spec"]) == {"clusterQueue"}


@dataclass
class FakeApi:
    """Objects by path, what was asked for, and failures that are to happen.

    Attributes:
        kinds: Collections that the server knows.
        objects: Path to object.
        logs: Name of a pod to its log.
        asked: Verb and path of each request.
        failures: Status codes of the next requests, before anything is looked at.
    """

    kinds: set[str] = field(default_factory=lambda: {"configmaps", "jobs", "jobsets", "pods"})
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    port: int = 0

    def answer(self, verb: str, path: str, body: bytes) -> tuple[int, Any]:
        url = urlsplit(path)
        self.asked.append((verb, path))
        if self.failures:
            code, reason = self.failures.pop(0)
            return code, status(code, reason, "made to fail")
        parts = url.path.strip("/").split("/")
        kind = parts[parts.index("namespaces") + 2]
        if kind not in self.kinds:
            return 404, status(404, "NotFound", "the server could not find the requested resource")
        if verb == "POST":
            assert parse_qs(url.query)["fieldValidation"] == ["Strict"]
            return self._create(url.path, json.loads(body))
        if parts[-1] == "log":
            return 200, self.logs.get(parts[-2], "")
        if verb == "DELETE":
            return self._found(url.path, self.objects.pop(url.path, None))
        if parts[-1] == kind:
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            return 200, {"kind": "List", "items": list(self._selected(url.path, selector))}
        return self._found(url.path, self.objects.get(url.path))

    def _create(self, path: str, one: dict[str, Any]) -> tuple[int, Any]:
        own = f"{path}/{one['metadata']['name']}"
        assert f"/namespaces/{one['metadata']['namespace']}/" in own
        try:
            validate(one)
        except Exception as error:
            return 400, status(400, "BadRequest", f"strict decoding error: {str(error).splitlines()[0]}")
        if own in self.objects:
            return 409, status(409, "AlreadyExists", f"{own} already exists")
        self.objects[own] = one
        return 201, one

    def _selected(self, path: str, selector: str) -> Iterator[dict[str, Any]]:
        key, _, value = selector.partition("=")
        for own, one in list(self.objects.items()):  # jobs are run in threads
            labels = one["metadata"].get("labels", {})
            if own.startswith(f"{path}/") and (not selector or labels.get(key) == value):
                yield one

    @staticmethod
    def _found(path: str, one: dict[str, Any] | None) -> tuple[int, Any]:
        if one is None:
            return 404, status(404, "NotFound", f"{path} not found")
        return 200, one


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message,
    }  # fmt: skip


@contextmanager
def serve(api: FakeApi) -> Iterator[None]:
    """Answer on loopback while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            code, answer = api.answer(self.command, self.path, self._body())
            plain = isinstance(answer, str)
            data = answer.encode() if plain else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if plain else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = handle_request  # noqa: N815 - names of the base class

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(port: int, key: str = "planted") -> str:
    """Return the configuration of a client of the fake."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "fake", "user": {"token": key}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "current-context": "fake",
        }
    )
