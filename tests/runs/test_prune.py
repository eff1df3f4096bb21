"""What a pruning removes, what it never removes, and what is read afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact, RunLayout, list_artifacts
from pivotopd.blobs import Blobs
from pivotopd.errors import ArtifactError
from pivotopd.records import Chain
from pivotopd.runs.copying import copy_run
from pivotopd.runs.prune import Retention, plan_pruning, prune
from pivotopd.runs.verify import verify_run
from tests.runs.cases import KINDS, digest_of, iteration_of, make_run, put, root_of


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return root_of(request.param, request, tmp_path)


def removed(layout: RunLayout, retention: Retention) -> set[tuple[str, int | None]]:
    return {
        (one.artifact.manifest.stage, one.artifact.manifest.iteration)
        for one in plan_pruning(layout, retention).removals
    }


def rows(*iterations: int, but: set[tuple[str, int]] = frozenset()) -> set[tuple[str, int | None]]:  # type: ignore[assignment]  # empty
    return {(stage, at) for stage in ("rollout", "label", "update") for at in iterations} - set(but)


def of(layout: RunLayout, stage: str, iteration: int) -> Artifact:
    prefix = layout.checkpoints if stage == "checkpoint" else layout.stage(iteration, stage)
    name = "update" if stage == "checkpoint" else stage
    return layout.store.require(prefix, digest_of(f"{layout.run} {name} {iteration}"))


def test_rows_of_old_iterations_go_and_what_kept_ones_name_stays(root: str) -> None:
    layout = make_run(root, 4)
    # Iteration 2 is the oldest that is kept; it names the update of iteration 1 as its policy.
    assert removed(layout, Retention(2)) == rows(0, 1, but={("update", 1)})
    before = set(Blobs(root).find(""))
    plan = plan_pruning(layout, Retention(2))
    assert set(Blobs(root).find("")) == before, "planning changes nothing"
    assert [one.path for one in plan.held] == [of(layout, "update", 1).path]
    prune(layout, plan)
    markers = {f"{one.artifact.path}/pruned.json" for one in plan.removals}
    assert set(Blobs(root).find("")) == before - {entry.path for entry in plan.files} | markers
    assert len(list(list_artifacts(layout.store))) == 4 * 5 + 1
    assert of(layout, "rollout", 0).log("metrics.json") == "{}\n"
    assert of(layout, "rollout", 2).rows(Chain)
    with pytest.raises(ArtifactError, match="a part is missing: it was pruned on"):
        of(layout, "rollout", 0).rows(Chain)
    found = verify_run(layout)
    assert found.problems == ()
    assert found.pruned == len(plan.files) == 5
    assert plan_pruning(layout, Retention(2)).removals == ()


def test_policies_go_when_asked_and_stay_when_named(root: str) -> None:
    layout = make_run(root, 4)
    put(layout, "diagnose", 1, {"policy": digest_of("run update 0")})
    retention = Retention(1, checkpoints=1)
    # The last iteration's policy is of iteration 2; a diagnosis names that of iteration 0.
    assert removed(layout, retention) == {
        *rows(0, 1, 2, but={("update", 0), ("update", 2)}),
        ("checkpoint", 1),
    }
    prune(layout, plan_pruning(layout, retention))
    assert of(layout, "checkpoint", 0).local_path()
    assert of(layout, "checkpoint", 2).local_path()
    with pytest.raises(ArtifactError, match="it was pruned on"):
        of(layout, "checkpoint", 1).local_path()
    assert verify_run(layout).problems == ()


def test_what_another_run_names_stays(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path), 3)
    other = make_run(str(tmp_path), 1, run="other")
    put(other, "rollout", 1, {"policy": digest_of("other update 0"), "before": digest_of("run rollout 0")})
    assert removed(layout, Retention(1)) == rows(0, 1, but={("update", 1), ("rollout", 0)})


def test_an_unfinished_iteration_does_not_count(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path), 2)
    unfinished = iteration_of(layout, 2, digest_of("start"))
    for _ in range(2):
        next(unfinished)  # its evaluation and its rollout
    assert removed(layout, Retention(1)) == rows(0, but={("update", 0)})
    assert removed(layout, Retention(2)) == set()
    assert removed(layout, Retention(5)) == set()


def test_a_broken_off_pruning_goes_on(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path), 4)
    prune(layout, plan_pruning(layout, Retention(1, checkpoints=1)))
    pruned = of(layout, "checkpoint", 0)
    weights = next(file for file in pruned.manifest.files if file.name == "model.safetensors")
    layout.store.blobs.write(f"{pruned.path}/{weights.path}", b"left by a killed pruning")
    plan = plan_pruning(layout, Retention(1, checkpoints=1))
    assert [entry.path for entry in plan.files] == [f"{pruned.path}/{weights.path}"]
    prune(layout, plan)
    assert verify_run(layout).problems == ()


def test_a_pruned_run_is_copied_as_it_is(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path / "root"), 3)
    prune(layout, plan_pruning(layout, Retention(1)))
    copy_run(layout, str(tmp_path / "copy"))
    found, source = verify_run(RunLayout(str(tmp_path / "copy"), "run")), verify_run(layout)
    assert found == source
    assert found.pruned > 0


def test_files_of_no_manifest_go_when_they_are_old(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path), 1)
    folder = f"{layout.stage(0, 'rollout')}/{digest_of('run rollout 0')}"
    for name in ("chains-00000-beaten.parquet", "chains-00001-young.parquet"):
        layout.store.blobs.write(f"{folder}/{name}", b"beaten writer")
    layout.store.blobs.write(f"{layout.stage(0, 'label')}/{'b' * 64}/labels-killed.parquet", b"killed writer")
    layout.store.blobs.write("run/notes.txt", b"a person's")
    old = time.time() - 3600 * 25
    for path in tmp_path.rglob("*"):
        if "young" not in path.name:
            os.utime(path, (old, old))
    plan = plan_pruning(layout, Retention(1))
    assert {Path(entry.path).name for entry in plan.leftovers} == {
        "chains-00000-beaten.parquet",
        "labels-killed.parquet",
    }
    assert plan_pruning(layout, Retention(1, leftover_hours=None)).leftovers == ()
    assert plan_pruning(layout, Retention(1, leftover_hours=26)).leftovers == ()
    prune(layout, plan)
    assert verify_run(layout).problems == ()
    assert layout.store.read_text("run/notes.txt") == "a person's"
    assert layout.store.read_text(f"{folder}/chains-00001-young.parquet") is not None


def test_a_damaged_manifest_stops_a_pruning(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path), 3)
    layout.store.blobs.write(f"{of(layout, 'update', 2).path}/manifest.json", b"{")
    with pytest.raises(ArtifactError, match="not JSON"):
        plan_pruning(layout, Retention(1))
