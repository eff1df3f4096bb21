"""The doctor's checks against things that are really broken."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.doctor_cli import checks_of
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from pivotopd.doctor import games, machine, platforms, services, storage
from pivotopd.doctor.finding import Check, Finding, carried_out
from pivotopd.doctor.versions import misfits, versions
from pivotopd.object_store import PATIENCE
from tests.s3_server import S3Server, use_server
from tests.servers import free_ports


def config(**changes: object) -> RunConfig:
    return RunConfig.model_validate(changes)


def only(found: Iterator[Finding]) -> Finding:
    (one,) = found
    return one


def test_a_check_that_hangs_is_given_up_and_what_it_found_is_kept() -> None:
    def look() -> Iterator[Finding]:
        yield Finding("first", True, "there")
        time.sleep(60)

    first, last = carried_out(Check("slow", look, limit_s=0.2))
    assert first.what == "first"
    assert (last.what, last.ok, last.detail) == ("slow", False, "no answer within 0.2 s")


def test_a_bug_in_a_check_is_no_finding() -> None:
    def look() -> Iterator[Finding]:
        yield from ()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(carried_out(Check("broken", look)))


def test_pins_that_are_not_met_are_named() -> None:
    installed = {"torch": "2.12.0", "numpy": "2.1", "fastapi": "0.1rc1"}
    asked = [
        "torch>=2.13",
        "numpy>=2",
        "fastapi>=0.0.1",
        "missing<3; python_version > '3'",
        "extra; extra == 'x'",
    ]
    assert list(misfits("ours", asked, installed)) == [
        "ours wants torch>=2.13, and 2.12.0 is installed",
        "ours wants missing<3, and it is not installed",
    ]


# ---------------------------------------------------------------------- storage


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert only(storage.rights(str(tmp_path / "a" / "b"))).ok
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    assert only(storage.rights(str(tmp_path / "kept"))).ok
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = only(storage.rights(str(tmp_path / "file")))
    assert not found.ok
    assert found.mend


def test_a_bucket_is_tried_with_conditional_create(s3_root: str) -> None:
    found = only(storage.rights(s3_root))
    assert found.ok, found.detail


def test_wrong_keys_and_a_missing_bucket_are_told_apart(
    s3_server: S3Server, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = only(storage.rights("s3://no-such-bucket/runs"))
    assert not missing.ok
    assert "no such bucket" in missing.detail
    use_server(monkeypatch, s3_server.url, AWS_SECRET_ACCESS_KEY="wrong")
    wrong = only(storage.rights(s3_root))
    assert not wrong.ok
    assert "refuses the keys" in wrong.detail
    assert "AWS_ACCESS_KEY_ID" in wrong.mend


def test_a_store_that_is_down(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE, "1")
    use_server(monkeypatch, f"http://127.0.0.1:{free_ports(1)[0]}")
    assert not only(storage.rights(s3_root)).ok


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        room = next(storage.disk(config(root=str(disk))))
        assert not room.ok
        assert room.detail.startswith("0.0 GB free")
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk / "cache"))
        downloads = only(storage.disk(config(root="s3://bucket/runs")))
        assert not downloads.ok, "what a bucket's policies are downloaded to"
        assert downloads.detail.startswith(f"0.0 GB free at {disk} ")
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(b"x" * 10**6)
        found = only(storage.rights(str(disk)))
        assert not found.ok
        assert "free some space" in found.mend
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_room_for_policies_follows_from_the_student(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.truncate(10**13)  # sparse: ten terabytes that take no room
    large = config(root=str(tmp_path), student={"kind": "pretrained", "path": str(tmp_path)})
    first, second = storage.disk(large)
    assert not first.ok
    assert first.required
    assert not second.ok
    assert not second.required
    assert storage.policy_bytes(large) == 10**13
    assert only(storage.student_folder(large)).ok
    nothing = config(student={"kind": "pretrained", "path": str(tmp_path / "none")})
    assert not only(storage.student_folder(nothing)).ok


def test_an_older_copy_behind_the_one_that_is_imported_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(versions())
    copy = tmp_path / "packaging-0.1.dist-info"
    copy.mkdir()
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: packaging\nVersion: 0.1\n")
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    assert list(versions()) == before
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    assert "and 0.1 is installed" in next(versions()).detail


# ---------------------------------------------------------------------- servers


def test_mlflow_database_and_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "will be made" in only(services.mlflow(config(root=str(tmp_path)))).detail
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)
    broken = only(services.mlflow(config(root=str(tmp_path))))
    assert not broken.ok
    assert "not a database" in broken.detail
    (tmp_path / "mlflow.db").unlink()
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("CREATE TABLE experiments (id INTEGER)")
        connection.commit()
        connection.execute("BEGIN EXCLUSIVE")
        assert "locked" in only(services.mlflow(config(root=str(tmp_path)))).detail
    connection.close()
    assert only(services.mlflow(config(root=str(tmp_path)))).ok
    down = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert "does not answer" in only(services.mlflow(config(tracking={"uri": down}))).detail
    monkeypatch.setenv("MLFLOW_TRACKING_URI", down.replace("//", "//me:planted@"))
    assert f"{down}/health does not answer" in only(services.mlflow(config(root=str(tmp_path)))).detail
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    remote = only(services.mlflow(config(root="s3://bucket/runs")))
    assert "cannot hold MLflow's sqlite file" in remote.detail
    assert only(services.mlflow(config(tracking={"enabled": False}))).ok


def test_prefect_server_down_and_none() -> None:
    assert only(services.prefect(None)).ok
    found = only(services.prefect(f"http://127.0.0.1:{free_ports(1)[0]}/api"))
    assert not found.ok
    assert "PREFECT_API_URL" in found.mend


def test_a_teacher_is_asked_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.headers.get("Authorization") == "Bearer right"
            body = json.dumps({"data": [{"id": "judge"}]}).encode() if right else b"{}"
            self.send_response(200 if right else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    Thread(target=server.serve_forever, daemon=True).start()

    def asked(model: str) -> Finding:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        section = {"kind": "endpoint", "base_url": url, "model": model, "api_key_variable": "DOCTOR_KEY"}
        return only(services.teacher(config(teacher=section)))

    try:
        monkeypatch.delenv("DOCTOR_KEY", raising=False)
        assert "DOCTOR_KEY is not set" in asked("judge").detail
        monkeypatch.setenv("DOCTOR_KEY", "planted-wrong")
        refused = asked("judge")
        assert "refuses the key (401)" in refused.detail
        assert "planted-wrong" not in refused.detail + refused.mend
        monkeypatch.setenv("DOCTOR_KEY", "right")
        assert asked("judge").ok
        assert "no model 'other', only judge" in asked("other").detail
    finally:
        server.shutdown()
        server.server_close()
    assert "does not answer" in asked("judge").detail


# ---------------------------------------------------------------------- machine, games, clusters


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        loopback, port = machine.ports()
    assert loopback.ok
    assert not port.ok
    assert "MASTER_PORT" in port.mend


@pytest.mark.parametrize(
    ("changes", "required"),
    [
        ({}, False),
        ({"teacher": {"kind": "local", "path": "/none", "engine": "vllm"}}, True),
        ({"engine": {"kind": "vllm"}}, True),
        ({"engine": {"kind": "vllm", "urls": ["http://h:1"]}}, False),
    ],
)
def test_vllm_is_required_of_the_process_that_starts_it(
    changes: dict[str, object], required: bool, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config(**changes)), encoding="utf-8")
    (check,) = [one for one in checks_of([str(file)]) if one.what == "vLLM"]
    assert (check.required, only(check.look()).required) == (required, required)


def test_games_that_are_not_there(tmp_path: Path) -> None:
    assert not only(games.configured(config(environment={"games": str(tmp_path / "none")}))).ok
    few = {"train": 2, "valid": 2, "test": 2}
    assert only(games.configured(config(environment={"generated": few}))).ok


def test_clusters_are_looked_for_only_where_launch_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(platforms.platforms(config())) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = list(platforms.platforms(config(launch={"slurm": {"qos": "high"}})))
    assert [one.ok for one in slurm] == [False] * 4
    absent = {"kubernetes": {"namespace": "other", "kubectl": str(tmp_path / "kubectl")}}
    assert [one.ok for one in platforms.platforms(config(launch=absent))] == [False, False]
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    kubectl.chmod(0o755)
    program, rights = platforms.platforms(config(launch=absent))
    assert program.ok
    assert rights.detail.endswith("ended with code 1: no")


def test_the_command_prints_json_and_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.doctor_cli.NEEDED", ("typer",))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_ports(1)[0]}")
    call = ["doctor", "--json", f"root={tmp_path}", "environment.generated={train: 2, valid: 2, test: 2}"]
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 2
    told = json.loads(shown.stdout)
    assert not told["ready"]
    found = {one["what"]: one for one in told["findings"]}
    assert not found["MLflow"]["ok"]
    assert "tracking.uri" in found["MLflow"]["mend"]
    assert found[f"storage at {tmp_path}"]["ok"]
    assert CliRunner().invoke(app, ["doctor", "no.such=1"]).exit_code != 0
