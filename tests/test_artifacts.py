"""An artifact reads back as it was written, or says why not."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pivotopd import publish
from pivotopd.artifacts import Artifact, RunLayout, Store, content_folder, find_runs, list_artifacts
from pivotopd.blobs import Blobs
from pivotopd.errors import ArtifactError, StorageError
from pivotopd.manifest import Part, content_digest, stage_digest
from pivotopd.records import Chain, Episode, schema_of, to_table
from tests.artifact_stores import (
    DIGEST,
    KINDS,
    PREFIX,
    ROOT,
    begin,
    chains,
    folder_of,
    fresh_store,
    write,
)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    yield from fresh_store(request.param, tmp_path, monkeypatch)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


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
from tests.artifact_stores import write
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
        (lambda raw: "[" * 100_000, "not JSON"),
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


def test_a_checkpoint_s_folder_leads_to_its_model(tmp_path: Path) -> None:
    published = tmp_path / "checkpoint"
    (published / "content-0123").mkdir(parents=True)
    assert content_folder(published) == published  # without a manifest it is no checkpoint
    (published / "manifest.json").write_text("{}")
    assert content_folder(published) == published / "content-0123"
    assert content_folder(published / "content-0123") == published / "content-0123"


def test_rows_are_read_without_threads(local: Store) -> None:
    """A thread of Arrow's that lets go of our bytes while Python ends aborts the process, now and then."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("looks for threads in /proc")
    write(local)
    code = (
        "import os, sys; from pivotopd.artifacts import Store; from pivotopd.records import Chain\n"
        f"artifact = Store(sys.argv[1]).open_artifact({PREFIX!r}, {DIGEST!r})\n"
        "threads = lambda: set(os.listdir('/proc/self/task'))\n"
        "before = threads(); rows = artifact.rows(Chain); print(len(rows), threads() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(local.blobs.local_root)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["3", "set()"]
