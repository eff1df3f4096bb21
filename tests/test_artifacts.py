"""An artifact exists whole or not at all, once, and reads back as it was written or says why not."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pivotopd import blobs, publish
from pivotopd.artifacts import Artifact, RunLayout, Store, find_runs, list_artifacts
from pivotopd.blobs import Blobs
from pivotopd.errors import ArtifactError, StorageError
from pivotopd.manifest import Manifest, Part, content_digest, stage_digest
from pivotopd.publish import ArtifactWriter
from pivotopd.records import Chain, Episode, schema_of, to_table

DIGEST = "d" * 64
PREFIX = "run/iterations/0003/recover"
ROOT = Path(__file__).resolve().parent.parent


class StrictStore(MemoryFileSystem):
    """Refuses a create-only write as SeaweedFS does: EINVAL, not FileExistsError."""

    protocol: ClassVar[tuple[str, ...]] = ("strictstore",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    refuse: ClassVar[OSError | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("strictstore://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if type(self).refuse is not None:
            raise type(self).refuse
        if mode == "create" and self.exists(path):
            raise OSError(errno.EINVAL, "At least one of the pre-conditions you specified did not hold")
        super().pipe_file(path, value, **kwargs)


fsspec.register_implementation("strictstore", StrictStore, clobber=True)


@pytest.fixture(params=["local", "memory", "strictstore"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = str(tmp_path / "root") if request.param == "local" else f"{request.param}://bucket/{tmp_path.name}"
    yield Store(uri)
    MemoryFileSystem.store.clear()
    StrictStore.store.clear()


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def chains(count: int = 3, run: str = "run") -> list[Chain]:
    return [Chain(run, 3, f"e{index}", 2, 1, "no_action", None) for index in range(count)]


def begin(store: Store, digest: str = DIGEST, prefix: str = PREFIX) -> ArtifactWriter:
    return store.begin(
        prefix,
        digest,
        stage="recover",
        run="run",
        iteration=3,
        code="c0de",
        config={"depth": 2},
        inputs={"rollout": "e" * 64},
    )


def write(store: Store, rows: list[Chain] | None = None, digest: str = DIGEST) -> Artifact:
    with begin(store, digest) as writer:
        writer.write_rows(Chain, chains() if rows is None else rows)
        return writer.publish(counts={"chains": 3}, seconds={"play": 1.5}, notes={"policy": "p"})


def folder_of(store: Store) -> Path:
    root = store.blobs.local_root
    assert root is not None
    return root / PREFIX / DIGEST


# Writing and reading


def test_round_trip(store: Store) -> None:
    assert store.open_artifact(PREFIX, DIGEST) is None
    artifact = write(store)
    again = store.open_artifact(PREFIX, DIGEST)
    assert again == artifact
    assert again.rows(Chain) == chains()
    assert again.manifest.inputs == {"rollout": "e" * 64}
    assert again.manifest.counts == {"chains": 3}
    assert again.uri == store.join(f"{PREFIX}/{DIGEST}")
    assert store.require(PREFIX, DIGEST) == artifact


def test_several_parts_keep_the_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "ROWS_PER_PART", 2)
    with begin(store) as writer:
        writer.write_rows(Chain, chains(5))
        writer.write_rows(Chain, chains(1, run="later"))
        artifact = writer.publish(counts={})
    assert [part.rows for part in artifact.manifest.parts] == [2, 2, 1, 1]
    assert artifact.rows(Chain) == chains(5) + chains(1, run="later")


def test_a_table_without_rows_is_there(store: Store) -> None:
    artifact = write(store, rows=[])
    assert artifact.rows(Chain) == []


def test_checkpoint_files_and_logs(store: Store) -> None:
    with begin(store) as writer:
        with writer.local_folder() as folder:
            (folder / "state").mkdir()
            (folder / "state" / "rank0.bin").write_bytes(b"\x00\x01")
            (folder / "model.safetensors").write_bytes(b"weights")
        writer.write_log("metrics.jsonl", '{"loss": 1.0}\n')
        artifact = writer.publish(counts={})
    path = artifact.local_path()
    assert (path / "state" / "rank0.bin").read_bytes() == b"\x00\x01"
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert artifact.log("metrics.jsonl") == '{"loss": 1.0}\n'
    assert artifact.local_path() == path
    with pytest.raises(ArtifactError, match=r"no log 'x', only \['metrics.jsonl'\]"):
        artifact.log("x")


def test_a_damaged_download_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store(f"memory://bucket/{tmp_path.name}")
    with begin(store) as writer:
        with writer.local_folder() as folder:
            (folder / "model.safetensors").write_bytes(b"weights")
        artifact = writer.publish(counts={})
    cached = artifact.local_path() / "model.safetensors"
    cached.write_bytes(b"weighty")
    assert (artifact.local_path() / "model.safetensors").read_bytes() == b"weights"


def test_runs_and_artifacts_are_found(store: Store) -> None:
    layout = RunLayout(store.uri, "run")
    assert find_runs(store.uri) == []
    assert list(list_artifacts(store)) == []
    artifact = write(store)
    assert store.create_text(layout.config, "seed: 0\n")
    assert not store.create_text(layout.config, "seed: 1\n")
    assert store.read_text(layout.config) == "seed: 0\n"
    assert find_runs(store.uri) == [layout]
    assert list(list_artifacts(store)) == [artifact]
    assert list(list_artifacts(store, layout.stage(3, "recover"))) == [artifact]
    assert list(list_artifacts(store, layout.checkpoints)) == []


def test_layout() -> None:
    layout = RunLayout.from_uri("s3://bucket/runs/alf-1/")
    assert layout == RunLayout("s3://bucket/runs", "alf-1")
    assert layout.uri == "s3://bucket/runs/alf-1"
    assert layout.stage(3, "label") == "alf-1/iterations/0003/label"
    assert layout.checkpoints == "alf-1/checkpoints"
    assert layout.warm_start == "shared/warm_start"
    assert RunLayout.from_uri("alf-1").root == "."
    assert RunLayout.from_uri("/alf-1").root == "/"


def test_a_store_travels_to_another_process(store: Store) -> None:
    assert pickle.loads(pickle.dumps(store)) == store


@pytest.mark.parametrize("uri", ["runs", "file:///data/runs", "~/runs"])
def test_local_addresses(uri: str) -> None:
    root = Blobs(uri).local_root
    assert root is not None
    assert root.is_absolute()
    assert "~" not in str(root)


def test_an_unknown_address_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="not a usable address"):
        Store("nonsense://x").open_artifact(PREFIX, DIGEST)


# Digests


def work(**changes: Any) -> str:
    base: dict[str, Any] = {
        "stage": "recover",
        "config": {"depth": 2, "limit": 64},
        "code": "c",
        "inputs": {"a": "1"},
        "schema_versions": {"turns": 1},
        "seed": 0,
    }
    base |= changes
    return stage_digest(base.pop("stage"), **base)


def test_the_stage_digest_moves_with_each_ingredient_and_not_with_order() -> None:
    changed = [
        work(stage="label"),
        work(config={"depth": 1, "limit": 64}),
        work(code="d"),
        work(inputs={"a": "2"}),
        work(schema_versions={"turns": 2}),
        work(seed=1),
        work(seed=None),
    ]
    assert len({work(), *changed}) == 8
    assert work(config={"limit": 64, "depth": 2}) == work()
    canonical = (
        '{"code":"c","config":{"depth":2,"limit":64},"format":1,"inputs":{"a":"1"},'
        '"schema_versions":{"turns":1},"seed":0,"stage":"recover"}'
    )
    assert work() == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_content_digest_is_of_content_alone(tmp_path: Path) -> None:
    first = write(Store(str(tmp_path / "a")))
    time.sleep(0.002)
    second = write(Store(str(tmp_path / "b")))
    other = write(Store(str(tmp_path / "c")), rows=chains(2))
    assert first.manifest.created_at != second.manifest.created_at
    assert first.manifest.content_digest == second.manifest.content_digest
    assert first.manifest.parts == second.manifest.parts
    assert first.manifest.content_digest != other.manifest.content_digest


WRITE_ONE = """
import sys
sys.path.insert(0, sys.argv[2])
from tests.test_artifacts import write
from pivotopd.artifacts import Store
print(write(Store(sys.argv[1])).manifest.content_digest)
"""


def test_the_content_digest_is_the_same_in_two_processes(tmp_path: Path) -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", WRITE_ONE, str(tmp_path / str(number)), str(ROOT)],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number in range(2)
    ]
    assert found[0] == found[1]
    assert len(found[0].strip()) == 64


# Damage


def damage_part(store: Store, change: Callable[[Path], None]) -> None:
    (part,) = folder_of(store).glob("*.parquet")
    change(part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "a part is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "its manifest says"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"X"), "hash is not its manifest's"),
    ],
    ids=["missing", "truncated", "flipped"],
)
def test_a_damaged_part_is_named(local: Store, change: Callable[[Path], None], message: str) -> None:
    artifact = write(local)
    damage_part(local, change)
    with pytest.raises(ArtifactError, match=message) as caught:
        artifact.rows(Chain)
    assert caught.value.where is not None
    assert Path(caught.value.where).name.startswith("chains-00000-")
    assert caught.value.mend


def forge(store: Store, data: bytes, *, version: int = 1, rows: int = 3) -> Artifact:
    """Publish a manifest over a part of our choice, hashes all right."""
    part = Part(
        path="forged.parquet",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        table="chains",
        version=version,
        rows=rows,
    )
    written = write(store).manifest
    changed = written.model_copy(
        update={"parts": (part,), "content_digest": content_digest([part], [], written.counts)}
    )
    store.blobs.write(f"{PREFIX}/{DIGEST}/forged.parquet", data)
    store.blobs.write(f"{PREFIX}/{DIGEST}/manifest.json", changed.to_json().encode())
    return store.require(PREFIX, DIGEST)


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_a_newer_version_in_the_manifest_is_refused(local: Store) -> None:
    artifact = forge(local, parquet(to_table(Chain, chains())), version=2)
    with pytest.raises(ArtifactError, match="schema version 2, this program reads 1"):
        artifact.rows(Chain)


def test_a_newer_version_in_the_part_is_refused(local: Store) -> None:
    newer = schema_of(Chain).with_metadata({"table": "chains", "version": "2"})
    table = to_table(Chain, chains()).cast(newer)
    artifact = forge(local, parquet(table.replace_schema_metadata(newer.metadata)))
    with pytest.raises(ArtifactError, match="schema version 2, this program reads 1"):
        artifact.rows(Chain)


def test_an_extra_column_in_the_part_is_refused(local: Store) -> None:
    table = to_table(Chain, chains()).append_column("surprise", pa.array([1, 2, 3]))
    artifact = forge(local, parquet(table))
    with pytest.raises(ArtifactError, match=r"extra \['surprise'\]") as caught:
        artifact.rows(Chain)
    assert str(caught.value.where).endswith("forged.parquet")


def test_another_row_count_is_refused(local: Store) -> None:
    artifact = forge(local, parquet(to_table(Chain, chains(2))))
    with pytest.raises(ArtifactError, match="2 rows, its manifest says 3"):
        artifact.rows(Chain)


def test_a_part_that_is_not_parquet_is_refused(local: Store) -> None:
    artifact = forge(local, b"PAR1 not really")
    with pytest.raises(ArtifactError, match="not a readable Parquet file"):
        artifact.rows(Chain)


def test_a_table_of_another_stage_is_refused(local: Store) -> None:
    with pytest.raises(ArtifactError, match=r"no table 'episodes', only \['chains'\]"):
        write(local).rows(Episode)


def test_a_damaged_checkpoint_file_is_refused(local: Store) -> None:
    with begin(local) as writer:
        with writer.local_folder() as folder:
            (folder / "model.safetensors").write_bytes(b"weights")
        artifact = writer.publish(counts={})
    file = artifact.local_path() / "model.safetensors"
    for data, message in ((b"weight", "6 bytes, its manifest says 7"), (b"weighty", "hash is not")):
        file.write_bytes(data)
        with pytest.raises(ArtifactError, match=message):
            artifact.local_path()
    file.unlink()
    with pytest.raises(ArtifactError, match="a file is missing"):
        artifact.local_path()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: "", "not JSON"),
        (lambda raw: "[]", "format version None"),
        (lambda raw: json.dumps({**raw, "format_version": 2}), "format version 2, this program reads 1"),
        (lambda raw: json.dumps({**raw, "surprise": 1}), "damaged at 'surprise'"),
        (lambda raw: json.dumps({**raw, "counts": {"chains": 4}}), "contradicts its own content digest"),
        (lambda raw: json.dumps({**raw, "digest": "f" * 64}), "of another digest"),
        (
            lambda raw: json.dumps({**raw, "parts": [{**raw["parts"][0], "path": "../../x"}]}),
            "leaves the artifact's folder",
        ),
    ],
)
def test_a_damaged_manifest_is_an_error_and_not_absence(
    local: Store, change: Callable[[dict[str, Any]], str], message: str
) -> None:
    write(local)
    path = folder_of(local) / "manifest.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ArtifactError, match=message):
        local.open_artifact(PREFIX, DIGEST)


def test_a_missing_artifact_is_an_error_where_it_is_required(local: Store) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        local.require(PREFIX, DIGEST)


def test_an_unreadable_manifest_is_not_absence(local: Store) -> None:
    (folder_of(local) / "manifest.json").mkdir(parents=True)  # root may read any file, but not a folder
    with pytest.raises(StorageError, match="cannot read"):
        local.open_artifact(PREFIX, DIGEST)


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
