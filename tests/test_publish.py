"""An artifact exists whole or not at all, and once: failures, full disks, races, kills."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pivotopd import blobs
from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.errors import StorageError
from pivotopd.manifest import Manifest
from pivotopd.records import Chain, Turn
from tests.artifact_stores import (
    DIGEST,
    KINDS,
    PREFIX,
    StrictStore,
    begin,
    chains,
    folder_of,
    fresh_store,
    write,
)
from tests.play import made_turn


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    yield from fresh_store(request.param, tmp_path, monkeypatch)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


# Failures while writing


def test_leaving_without_publishing_leaves_nothing_that_is_read(store: Store) -> None:
    with begin(store) as writer:
        writer.write_rows(Chain, chains())
        with writer.local_folder() as folder:
            (folder / "x").write_bytes(b"x")
    assert store.open_artifact(PREFIX, DIGEST) is None
    assert list(list_artifacts(store)) == []
    assert write(store).rows(Chain) == chains()


def test_a_failure_inside_removes_the_attempt(local: Store) -> None:
    def fail() -> None:
        with begin(local) as writer, writer.local_folder() as folder:
            (folder / "x").write_bytes(b"x")
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert not folder_of(local).exists()


def test_a_refusing_store_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("strictstore://bucket/refusing")
    monkeypatch.setattr(StrictStore, "refuse", PermissionError(errno.EACCES, "Access Denied"))
    with pytest.raises(StorageError, match="Access Denied") as caught, begin(store) as writer:
        writer.write_rows(Chain, chains())
    assert caught.value.where
    assert "write access" in str(caught.value.mend)


def test_an_invalid_request_without_a_winner_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("strictstore://bucket/invalid")
    with begin(store) as writer:
        writer.write_rows(Chain, chains())
        monkeypatch.setattr(StrictStore, "refuse", OSError(errno.EINVAL, "bad request"))
        with pytest.raises(StorageError, match="bad request"):
            writer.publish(counts={})


def test_a_file_in_the_way_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    store = Store(str(tmp_path / "root"))
    with pytest.raises(StorageError) as caught:
        write(store)
    assert caught.value.where


def test_create_only_never_writes_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        store.blobs.create("x", b"")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def noise(count: int) -> list[Chain]:
    draw = random.Random(0)
    return [Chain("run", 3, draw.randbytes(500).hex(), 2, 1, "depth", None) for _ in range(count)]


def test_a_full_disk_publishes_nothing_and_a_rerun_mends(small_disk: Path) -> None:
    store = Store(str(small_disk))
    with pytest.raises(StorageError, match="No space left") as caught:
        write(store, rows=noise(4000))
    assert "free some space" in str(caught.value.mend)
    assert store.open_artifact(PREFIX, DIGEST) is None
    assert list(small_disk.rglob(".attempt-*")) == []
    assert write(store).rows(Chain) == chains()


def test_a_disk_full_at_the_manifest_publishes_nothing(small_disk: Path) -> None:
    store = Store(str(small_disk))
    with begin(store) as writer:
        writer.write_rows(Chain, chains())
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(b"x" * (2 << 20))
        with pytest.raises(StorageError, match="No space left"):
            writer.publish(counts={})
    assert store.open_artifact(PREFIX, DIGEST) is None
    filler.unlink()
    assert write(store).rows(Chain) == chains()


def test_a_disk_filled_by_a_checkpoint_is_a_storage_error(small_disk: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    store = Store(str(small_disk))
    with pytest.raises(StorageError, match="No space left"), begin(store) as writer:  # noqa: SIM117
        with writer.local_folder() as folder:
            safetensors.save_file({"w": torch.zeros(1 << 20)}, folder / "model.safetensors")
    assert store.open_artifact(PREFIX, DIGEST) is None
    assert list(small_disk.rglob("*.safetensors")) == []


# Races and kills


def race(store: Store, count: int, rows: Callable[[int], list[Chain]]) -> list[Artifact | BaseException]:
    barrier = threading.Barrier(count)
    results: list[Artifact | BaseException] = []

    def run(number: int) -> None:
        try:
            with begin(store) as writer:
                writer.write_rows(Chain, rows(number))
                with writer.local_folder() as folder:
                    (folder / "model.safetensors").write_bytes(f"{rows(number)}".encode())
                barrier.wait()
                results.append(writer.publish(counts={"chains": 3}))
        except BaseException as error:
            barrier.abort()
            results.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_write_the_same_agree(local: Store) -> None:
    results = race(local, 12, lambda number: chains())
    assert all(isinstance(result, Artifact) for result in results), results
    assert len({result.manifest.created_at for result in results if isinstance(result, Artifact)}) == 1
    artifact = local.require(PREFIX, DIGEST)
    assert artifact.rows(Chain) == chains()
    assert (artifact.local_path() / "model.safetensors").read_bytes() == f"{chains()}".encode()


def test_threads_that_write_different_rows_have_one_winner(local: Store) -> None:
    results = race(local, 12, lambda number: chains(3, run=f"writer-{number}"))
    assert all(isinstance(result, Artifact) for result in results), results
    artifact = local.require(PREFIX, DIGEST)
    (run,) = {row.run for row in artifact.rows(Chain)}
    assert all(result == artifact for result in results)
    winner = chains(3, run=run)
    assert (artifact.local_path() / "model.safetensors").read_bytes() == f"{winner}".encode()
    names = {path.name for path in folder_of(local).iterdir()}
    assert len(names) == 3, names  # the losers' parts, folders and attempts are gone


def test_the_second_of_two_writers_reads_the_first(store: Store) -> None:
    with begin(store) as slow:
        slow.write_rows(Chain, chains(3, run="slow"))
        first = write(store)
        assert slow.publish(counts={"chains": 3}) == first
    assert store.require(PREFIX, DIGEST).rows(Chain) == chains()


def publish_in_process(uri: str, number: int, gate: Any, results: Any) -> None:
    gate.wait()
    artifact = write(Store(uri), rows=chains(3, run=f"writer-{number}"))
    results.put((artifact.manifest.content_digest, {row.run for row in artifact.rows(Chain)}))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_have_one_winner(tmp_path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    gate, results = context.Event(), context.Queue()
    workers = [
        context.Process(target=publish_in_process, args=(str(tmp_path), number, gate, results))
        for number in range(4)
    ]
    for worker in workers:
        worker.start()
    gate.set()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(item == found[0] for item in found)


def write_until_killed(uri: str, ready: Any) -> None:
    """Write artifacts one after another, so that a kill meets any moment of it."""
    store = Store(uri)
    for number in range(10_000):
        digest = f"{number:064x}"
        with begin(store, digest) as writer:
            for _ in range(3):
                writer.write_rows(Chain, chains(200, run=f"{number}"))
            with writer.local_folder() as folder:
                (folder / "model.safetensors").write_bytes(b"w" * 100_000)
            if number == 1:
                ready.set()
            writer.publish(counts={"chains": 600})


@pytest.mark.slow
def test_a_killed_writer_leaves_nothing_half_and_a_rerun_completes(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork")
    draw = random.Random(7)
    for attempt in range(12):
        root = tmp_path / str(attempt)
        store = Store(str(root))
        ready = context.Event()
        worker = context.Process(target=write_until_killed, args=(str(root), ready))
        worker.start()
        assert ready.wait(timeout=60)
        time.sleep(draw.uniform(0.0, 0.05))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        for artifact in list_artifacts(store):  # whatever is published is whole
            assert len(artifact.rows(Chain)) == 600
            assert (artifact.local_path() / "model.safetensors").stat().st_size == 100_000
        last = max(path.name for path in (root / PREFIX).iterdir())
        with begin(store, last) as writer:
            for _ in range(3):
                writer.write_rows(Chain, chains(200, run=str(int(last, 16))))
            with writer.local_folder() as folder:
                (folder / "model.safetensors").write_bytes(b"w" * 100_000)
            done = writer.publish(counts={"chains": 600})
        assert len(done.rows(Chain)) == 600
        assert list((root / PREFIX / last).glob(".attempt-*")) == []


def test_a_live_writers_attempt_is_left_alone(local: Store) -> None:
    with begin(local) as first, first.local_folder() as folder:
        (folder / "x").write_bytes(b"x")
        with begin(local):
            pass
        assert (folder / "x").read_bytes() == b"x"


def test_a_dead_writers_attempt_is_swept(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    monkeypatch.setattr(blobs.os, "getpid", lambda: done.pid)
    dead = blobs.attempt_name()
    monkeypatch.undo()
    (folder_of(local) / dead).mkdir(parents=True)
    foreign = folder_of(local) / f".attempt-another.host-{done.pid}-{'0' * 12}"
    foreign.write_text("not ours to judge")
    write(local)
    assert not (folder_of(local) / dead).exists()
    assert foreign.exists()


def test_a_damaged_leftover_folder_is_replaced(local: Store) -> None:
    def once(damage: bool) -> Artifact:
        with begin(local) as writer:
            with writer.local_folder() as folder:
                (folder / "model.safetensors").write_bytes(b"weights")
            if damage:
                (left,) = folder_of(local).glob("content-*")
                (left / "model.safetensors").write_bytes(b"?")
                raise InterruptedError
            return writer.publish(counts={})

    with pytest.raises(InterruptedError):
        once(damage=True)
    assert (once(damage=False).local_path() / "model.safetensors").read_bytes() == b"weights"


def test_a_manifest_tells_its_fields() -> None:
    assert all(field.description for field in Manifest.model_fields.values())


def test_numbers_in_lists_have_no_dictionary_and_texts_do(local: Store, tmp_path: Path) -> None:
    rows = [replace(made_turn(index), admissible=("look", "go to fridge 1")) for index in range(50)]
    with begin(local) as writer:
        writer.write_rows(Turn, rows)
        artifact = writer.publish(counts={})
    assert [turn.admissible for turn in artifact.rows(Turn)] == [["look", "go to fridge 1"]] * 50
    (part,) = artifact.manifest.parts
    group = pq.ParquetFile(tmp_path / artifact.path / part.path).metadata.row_group(0)
    encoded = {}
    for index in range(group.num_columns):
        column = group.column(index)
        encoded[column.path_in_schema.partition(".")[0]] = "RLE_DICTIONARY" in column.encodings
    plain = {"prompt_ids", "response_ids", "behaviour_logprobs_nats", "hinted_prompt_ids"}
    assert {name for name, found in encoded.items() if not found and name not in plain} <= {
        "text_escaped", "committed", "valid"
    }, "Parquet has none for booleans"  # fmt: skip
    assert not any(encoded[name] for name in plain)
    assert encoded["admissible"]
