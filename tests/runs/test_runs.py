"""Runs in a folder and in a bucket: listed, verified, copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.artifacts import RunLayout, list_artifacts
from pivotopd.blobs import Blobs
from pivotopd.errors import ArtifactError, ConfigError, StorageError
from pivotopd.records import Chain
from pivotopd.runs.copying import copy_run
from pivotopd.runs.listing import list_runs
from pivotopd.runs.verify import verify_run
from tests.fault_proxy import Fault, FaultProxy
from tests.runs.cases import CONFIG, KINDS, digest_of, make_run, root_of

ARTIFACTS = 2 * 5 + 1
"""Of two iterations, and the warm start."""
FILES = 2 * (4 * 2 + 3) + 3
"""A table and a log each, two files of a model and a log for checkpoints and the warm start."""


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return root_of(request.param, request, tmp_path)


def test_runs_are_listed_with_what_they_hold(root: str) -> None:
    assert list_runs(root) == []
    make_run(root, 2)
    make_run(root, 1, run="another")
    Blobs(root).write("comparisons/x/report.md", b"no run")
    Blobs(root).write("stray/file", b"no run")
    another, run, shared = list_runs(root)
    assert (another.name, run.name, shared.name) == ("another", "run", "shared")
    assert (another.updates, run.updates, shared.updates) == (1, 2, 0)
    assert run.stages == {"checkpoints": 2, "evaluate": 2, "label": 2, "rollout": 2, "update": 2}
    assert shared.stages == {"warm_start": 1}
    assert run.bytes == sum(entry.bytes for entry in Blobs(root).entries("run"))
    assert run.last_activity is not None
    assert another.last_activity is not None
    assert run.last_activity <= another.last_activity


def test_a_whole_run_verifies(root: str) -> None:
    layout = make_run(root, 2)
    told: list[tuple[int, int]] = []
    found = verify_run(layout, lambda what, done, total: told.append((done, total)))
    assert (found.artifacts, found.files, found.pruned, found.problems) == (ARTIFACTS, FILES, 0, ())
    assert told[-1] == (FILES, FILES)
    with pytest.raises(ArtifactError, match="no run"):
        verify_run(RunLayout(root, "absent"))


def test_every_damage_is_found(root: str) -> None:
    layout = make_run(root, 2)
    blobs = layout.store.blobs
    label = layout.store.require(layout.stage(0, "label"), digest_of("run label 0"))
    rollout = layout.store.require(layout.stage(1, "rollout"), digest_of("run rollout 1"))
    update = layout.store.require(layout.stage(1, "update"), digest_of("run update 1"))
    start = layout.store.require(layout.warm_start, digest_of("start"))
    (flipped,), (cut,), (gone,) = (one.manifest.parts for one in (label, rollout, update))
    data = blobs.read(f"{label.path}/{flipped.path}") or b""
    blobs.write(f"{label.path}/{flipped.path}", data[:-1] + bytes([data[-1] ^ 1]))
    blobs.write(f"{rollout.path}/{cut.path}", b"short")
    blobs.remove(f"{update.path}/{gone.path}")
    weights = next(file for file in start.manifest.files if file.name == "model.safetensors")
    blobs.write(f"{start.path}/{weights.path}", b"x" * weights.bytes)
    blobs.write(f"{layout.stage(0, 'rollout')}/{digest_of('run rollout 0')}/manifest.json", b"{")
    found = verify_run(layout)
    assert {(problem.where, problem.what) for problem in found.problems} == {
        (layout.store.join(f"{label.path}/{flipped.path}"), "its hash is not its manifest's"),
        (
            layout.store.join(f"{rollout.path}/{cut.path}"),
            f"it has 5 bytes, its manifest says {cut.bytes}",
        ),
        (layout.store.join(f"{update.path}/{gone.path}"), "it is missing"),
        (layout.store.join(f"{start.path}/{weights.path}"), "its hash is not its manifest's"),
        (
            layout.store.join(f"{layout.stage(0, 'rollout')}/{digest_of('run rollout 0')}/manifest.json"),
            "the manifest is not JSON",
        ),
    }


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_copy_is_whole_and_the_same(direction: str, s3_root: str, tmp_path: Path) -> None:
    local = str(tmp_path / "root")
    source, target = (local, s3_root) if direction == "up" else (s3_root, local)
    layout = make_run(source, 2)
    Blobs(source).write(f"run/iterations/0000/rollout/{'a' * 64}/chains-unpublished.parquet", b"half")
    copied = copy_run(layout, target)
    assert (copied.artifacts, copied.already, copied.files) == (ARTIFACTS, 0, FILES)
    copy = RunLayout(target, "run")
    there = {one.path: one for one in list_artifacts(copy.store)}
    assert {path: one.manifest for path, one in there.items()} == {
        one.path: one.manifest for one in list_artifacts(layout.store)
    }
    assert verify_run(copy).problems == ()
    assert copy.store.read_text(copy.config) == CONFIG
    assert not any("unpublished" in path for path in Blobs(target).find(""))
    rollout = copy.store.require(copy.stage(1, "rollout"), digest_of("run rollout 1"))
    assert rollout.rows(Chain)[0].run == "run rollout 1"
    again = copy_run(layout, target)
    assert (again.artifacts, again.already, again.files) == (0, ARTIFACTS, 0)


def test_a_broken_copy_is_no_run_and_goes_on(s3_root: str, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    layout = make_run(str(tmp_path / "root"), 2)
    update = f"{layout.stage(0, 'update')}/{digest_of('run update 0')}"
    s3_proxy.faults = [Fault("slow_down", "PUT", f"{update}/manifest.json")]
    with pytest.raises(StorageError, match="reduce your request rate"):
        copy_run(layout, s3_root)
    s3_proxy.faults = []
    assert [run.name for run in list_runs(s3_root)] == ["shared"]
    sent = len(Blobs(s3_root).entries())
    s3_proxy.seen.clear()
    copied = copy_run(layout, s3_root)
    assert copied.already == 5  # the warm start, and four of the first iteration
    assert copied.files == FILES - (sent - copied.already)
    puts = [path for method, path in s3_proxy.seen if method == "PUT" and update in path]
    assert len(puts) == 1  # its manifest: the files were there
    assert verify_run(RunLayout(s3_root, "run")).problems == ()


def test_a_damaged_file_is_not_copied(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path / "root"), 1)
    rollout = layout.store.require(layout.stage(0, "rollout"), digest_of("run rollout 0"))
    path = f"{rollout.path}/{rollout.manifest.parts[0].path}"
    layout.store.blobs.write(path, b"x" * rollout.manifest.parts[0].bytes)
    with pytest.raises(ArtifactError, match="hash is not its manifest's") as caught:
        copy_run(layout, str(tmp_path / "copy"))
    assert caught.value.where == layout.store.join(path)
    assert Blobs(str(tmp_path / "copy")).find(rollout.path) == []


def test_another_run_of_the_name_is_not_mixed_in(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path / "root"), 1)
    target = RunLayout(str(tmp_path / "copy"), "run")
    target.store.write_text(target.config, CONFIG.replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError, match="another run named 'run'"):
        copy_run(layout, target.root)
    target.store.write_text(target.config, CONFIG.replace("iterations: 4", "iterations: 2") + "launch: {}\n")
    assert copy_run(layout, target.root).artifacts == 6
    elsewhere = "launch: {resources: {gpus: 8}}\nengine: {urls: ['http://h:1']}\n"
    target.store.write_text(target.config, CONFIG + elsewhere)
    layout.store.write_text(layout.config, CONFIG + "engine: {urls: []}\n")
    assert copy_run(layout, target.root).already == 6, "where it ran is not what it is"
    with pytest.raises(ConfigError, match="onto itself"):
        copy_run(layout, f"{tmp_path}/root/")
    with pytest.raises(ArtifactError, match="no run"):
        copy_run(RunLayout(layout.root, "absent"), target.root)
