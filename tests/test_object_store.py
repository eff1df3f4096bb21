"""Against a real S3 server: what a store must do, and what its failures are called."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pivotopd import object_store
from pivotopd.artifacts import Artifact, RunLayout, Store, find_runs, list_artifacts
from pivotopd.blobs import Blobs
from pivotopd.errors import ConfigError, PivotError, StorageError
from pivotopd.records import Chain
from tests.artifact_stores import DIGEST, PREFIX, begin, chains, write
from tests.chat_server import closed_port
from tests.fault_proxy import Fault, FaultProxy
from tests.s3_server import KEY, SECRET, S3Server, use_server

MANIFEST = f"{PREFIX}/{DIGEST}/manifest.json"


# What a store must do


def test_bytes_listing_and_deletion(s3_root: str) -> None:
    blobs = Blobs(s3_root)
    assert blobs.read("a/x") is None
    assert blobs.find("") == []
    assert blobs.folders() == []
    blobs.write("a/x", b"one")
    blobs.write("a/x", b"two")
    blobs.write("a/empty", b"")
    blobs.write("ab/y", b"other")
    blobs.write("a/.hidden/z", b"unseen")
    assert blobs.read("a/x") == b"two"
    assert blobs.read("a/empty") == b""
    assert blobs.find("a") == ["a/empty", "a/x"]
    assert blobs.folders() == ["a", "ab"]
    assert [(entry.path, entry.bytes) for entry in blobs.entries("a")] == [("a/empty", 0), ("a/x", 3)]
    assert all(entry.changed_at is not None for entry in blobs.entries())
    blobs.remove("a")
    assert blobs.find("") == ["ab/y"]
    blobs.remove("a")


def test_a_listing_has_all_pages(s3_root: str) -> None:
    blobs = Blobs(s3_root)
    names = [f"many/{number:04d}" for number in range(1030)]  # a page holds 1000
    filesystem, root = object_store.open_filesystem(s3_root)
    filesystem.pipe({f"{root}/{name}": b"x" for name in names})
    assert blobs.find("many") == names
    blobs.remove("many")
    assert blobs.find("") == []


def test_a_create_only_write_never_overwrites(s3_root: str) -> None:
    blobs = Blobs(s3_root)
    assert blobs.create("x", b"first")
    assert not blobs.create("x", b"second")
    assert not blobs.create("x", b"first")
    assert blobs.read("x") == b"first"
    with pytest.raises(ValueError, match="at least one byte"):
        blobs.create("x", b"")
    assert blobs.read("x") == b"first"


def test_of_many_writers_one_wins(s3_root: str) -> None:
    barrier = threading.Barrier(12)
    won: list[int] = []

    def run(number: int) -> None:
        barrier.wait()
        for round_ in range(4):
            if Blobs(s3_root).create(f"race-{round_}", f"writer {number}".encode()):
                won.append(round_)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [0, 1, 2, 3]


def publish(uri: str, number: int, results: Any) -> None:
    with begin(Store(uri)) as writer:
        writer.write_rows(Chain, chains(3, run=f"writer-{number}"))
        with writer.local_folder() as folder:
            (folder / "model.safetensors").write_bytes(f"weights of {number}".encode())
        artifact = writer.publish(counts={"chains": 3})
    results.put((number, artifact.manifest.content_digest, artifact.rows(Chain)[0].run))


def test_forked_writers_of_one_artifact_agree_and_losers_leave_nothing(s3_root: str) -> None:
    context: Any = multiprocessing.get_context("fork")
    assert (
        Store(s3_root).open_artifact(PREFIX, DIGEST) is None
    )  # the parent's filesystem is open when it forks
    results = context.Queue()
    workers = [context.Process(target=publish, args=(s3_root, number, results)) for number in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    assert len({(digest, run) for _, digest, run in found}) == 1
    artifact = Store(s3_root).require(PREFIX, DIGEST)
    winner = artifact.rows(Chain)[0].run
    weights = artifact.local_path() / "model.safetensors"
    assert weights.read_bytes() == f"weights of {winner.removeprefix('writer-')}".encode()
    listed = {f"{artifact.path}/{one.path}" for one in (*artifact.manifest.parts, *artifact.manifest.files)}
    assert set(Blobs(s3_root).find("")) == listed | {MANIFEST}


def test_a_run_is_found_as_it_is_locally(s3_root: str) -> None:
    assert find_runs(s3_root) == []
    layout = RunLayout.from_uri(f"{s3_root}/run")
    assert layout == RunLayout(s3_root, "run")
    artifact = write(layout.store)
    assert layout.store.create_text(layout.config, "seed: 0\n")
    assert find_runs(s3_root) == [layout]
    assert list(list_artifacts(layout.store, layout.stage(3, "recover"))) == [artifact]
    assert artifact.rows(Chain) == chains()


@pytest.mark.slow
def test_a_large_file_travels_in_parts(s3_root: str, tmp_path: Path) -> None:
    size = (101 << 20) + 7  # two parts of 50 MiB and a rest
    data = random.Random(0).randbytes(1 << 20) * 101 + b"the end"
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    blobs = Blobs(s3_root)
    blobs.upload(source, "large")
    assert blobs.download("large", target)
    assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(data).digest()
    assert b"".join(blobs.chunks("large", size)) == data
    blobs.write("whole", data)
    assert blobs.read("whole") == data
    assert not blobs.create("large", data)
    assert [entry.bytes for entry in blobs.entries()] == [size, size]


# Passing failures


@pytest.mark.parametrize("kind", ["slow_down", "plain_503", "reset"])
def test_a_passing_failure_is_waited_out(kind: Any, s3_root: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.faults = [Fault(kind, method, times=4) for method in ("GET", "PUT")]
    artifact = write(Store(s3_root))
    s3_proxy.faults = [Fault(kind, times=4)]
    assert artifact.rows(Chain) == chains()
    s3_proxy.faults = [Fault(kind, times=4)]
    assert list(list_artifacts(Store(s3_root))) == [artifact]


def test_an_answer_cut_short_is_asked_for_again(s3_root: str, s3_proxy: FaultProxy) -> None:
    blobs = Blobs(s3_root)
    blobs.write("x", b"0123456789" * 1000)
    s3_proxy.faults = [Fault("cut", "GET", "/x", times=2)]
    assert blobs.read("x") == b"0123456789" * 1000


def test_silence_counts_as_a_lost_request(
    s3_root: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = Blobs(s3_root)
    blobs.write("x", b"here")
    use_server(monkeypatch, s3_proxy.url, **{object_store.TIMEOUT: "1"})
    s3_proxy.faults = [Fault("hang", "GET", "/x", times=1)]
    assert blobs.read("x") == b"here"


def test_a_lost_answer_to_a_create_is_no_lost_race(s3_root: str, s3_proxy: FaultProxy) -> None:
    blobs = Blobs(s3_root)
    s3_proxy.faults = [Fault("lost_answer", "PUT", "/x", times=1)]
    assert blobs.create("x", b"mine")
    assert sum(method == "PUT" for method, _ in s3_proxy.seen) == 2
    s3_proxy.faults = [Fault("lost_answer", "PUT", "/x", times=1)]
    assert not blobs.create("x", b"late")
    assert blobs.read("x") == b"mine"


def test_a_manifest_whose_answer_was_lost_is_published(s3_root: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.faults = [Fault("lost_answer", "PUT", "manifest.json", times=1)]
    artifact = write(Store(s3_root))
    assert artifact.rows(Chain) == chains()


@pytest.mark.parametrize("kind", ["slow_down", "plain_503", "reset"])
def test_a_failing_store_is_never_an_empty_one(kind: Any, s3_root: str, s3_proxy: FaultProxy) -> None:
    store = Store(s3_root)
    write(store)
    store.write_text("run/config.yaml", "seed: 0\n")
    s3_proxy.faults = [Fault(kind)]
    asked = [
        lambda: store.open_artifact(PREFIX, DIGEST),
        lambda: store.blobs.find("run"),
        lambda: find_runs(s3_root),
    ]
    for question in asked:
        with pytest.raises(StorageError) as caught:
            question()
        assert caught.value.exit_code == 74
        assert str(caught.value.where).startswith(s3_root)
        assert object_store.PATIENCE in str(caught.value.mend)


def test_a_failing_write_publishes_nothing_and_a_rerun_mends(s3_root: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.faults = [Fault("slow_down", "PUT", "manifest.json")]
    with pytest.raises(StorageError, match="reduce your request rate"):
        write(Store(s3_root))
    s3_proxy.faults = []
    assert Store(s3_root).open_artifact(PREFIX, DIGEST) is None
    assert isinstance(write(Store(s3_root)), Artifact)


def test_a_listing_that_breaks_off_is_no_short_listing(s3_root: str, s3_proxy: FaultProxy) -> None:
    filesystem, root = object_store.open_filesystem(s3_root)
    filesystem.pipe({f"{root}/many/{number:04d}": b"x" for number in range(1010)})
    s3_proxy.faults = [Fault("slow_down", "GET", "continuation-token")]
    with pytest.raises(StorageError):
        Blobs(s3_root).find("many")
    s3_proxy.faults = [Fault("slow_down", "GET", "continuation-token", times=2)]
    assert len(Blobs(s3_root).find("many")) == 1010


def test_a_page_that_is_no_answer_of_a_store_is_not_a_missing_file(
    s3_root: str, s3_proxy: FaultProxy
) -> None:
    Blobs(s3_root).write("x", b"here")
    s3_proxy.faults = [Fault("plain_404")]
    with pytest.raises(StorageError, match="404"):
        Blobs(s3_root).read("x")


def test_no_server_is_one_clear_error(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_server(monkeypatch, f"http://127.0.0.1:{closed_port()}", **{object_store.PATIENCE: "1"})
    with pytest.raises(StorageError, match="Could not connect") as caught:
        Blobs(s3_root).read("x")
    assert caught.value.exit_code == 74


def test_a_server_that_goes_and_comes_back(
    s3_root: str, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = write(Store(s3_root))
    s3_server.stop()
    with ThreadPoolExecutor(1) as pool:
        try:
            found = pool.submit(Store(s3_root).open_artifact, PREFIX, DIGEST)
            while not caplog.messages and not found.done():  # until it has failed once
                time.sleep(0.05)
        finally:
            s3_server.start()
            s3_server.wait()
        assert found.result() == artifact
    assert "trying again" in caplog.messages[0]
    assert artifact.rows(Chain) == chains()


# Settings


@pytest.mark.parametrize(
    ("variable", "value"),
    [("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "wrong-secret-of-somebody")],
)
def test_wrong_keys_are_a_configuration_error(
    variable: str, value: str, s3_root: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, s3_server.url, **{variable: value})
    asked = [
        lambda: Blobs(s3_root).read("x"),
        lambda: Blobs(s3_root).find(""),
        lambda: Blobs(s3_root).write("x", b"x"),
        lambda: Blobs(s3_root).create("x", b"x"),
    ]
    for question in asked:
        with pytest.raises(ConfigError, match="refuses the keys") as caught:
            question()
        assert caught.value.exit_code == 2
        assert "AWS_ACCESS_KEY_ID" in str(caught.value.mend)
        assert not any(secret in str(caught.value) for secret in (KEY, SECRET, value))


def test_no_keys_are_a_configuration_error(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    with pytest.raises(ConfigError, match="no keys are set"):
        Blobs(s3_root).read("x")


def test_a_missing_bucket_is_said_to_be_missing(s3_root: str) -> None:
    blobs = Blobs(s3_root.replace("s3://tests/", "s3://no-such-bucket/"))
    asked = [
        lambda: blobs.read("x"),
        lambda: blobs.find(""),
        blobs.folders,
        lambda: blobs.write("x", b"x"),
        lambda: blobs.create("x", b"x"),
    ]
    for question in asked:
        with pytest.raises(StorageError, match="no such bucket") as caught:
            question()
        assert caught.value.exit_code == 74
        assert "AWS_ENDPOINT_URL" in str(caught.value.mend)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/runs", "holds no keys"),
        ("s3://Not_A Bucket/runs", "Invalid bucket name"),
    ],
)
def test_an_address_that_cannot_be_one(root: str, message: str, s3_root: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Blobs(root).read("x")
    assert "secret" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("AWS_ENDPOINT_URL", "127.0.0.1:8333"), (object_store.PATIENCE, "long"), (object_store.TIMEOUT, "0")],
)
def test_a_variable_that_cannot_be_one(
    variable: str, value: str, s3_root: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, s3_server.url, **{variable: value})
    with pytest.raises(ConfigError) as caught:
        Blobs(s3_root).read("x")
    assert caught.value.where == f"${variable}"


def failure_of(error: Exception) -> PivotError | None:
    return object_store.failure("read", "s3://bucket/x", error)


def test_failures_that_are_not_the_stores_are_left_alone() -> None:
    assert failure_of(ValueError("a defect")) is None
    assert not object_store.passing(ValueError("a defect"))
    assert object_store.passing(ConnectionResetError("reset"))
    assert not object_store.passing(PermissionError("no"))


def test_a_local_store_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def refuse(*_arguments: object, **_options: object) -> None:
        nonlocal asked
        asked += 1
        raise TimeoutError("a slow disk")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.cat_file", refuse)
    with pytest.raises(StorageError, match="a slow disk"):
        Blobs(str(tmp_path)).read("x")
    assert asked == 1
    assert os.listdir(tmp_path) == []
