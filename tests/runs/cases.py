"""A run of several iterations as manifests see it: small tables and models, inputs named as training does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact, RunLayout
from pivotopd.records import Chain
from tests.artifact_stores import chains

KINDS = ["local", "s3"]
CONFIG = "name: run\nroot: somewhere\nseed: 0\niterations: 4\n"


def digest_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def root_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return an empty root, in a folder or in a bucket."""
    return str(folder / "root") if kind == "local" else str(request.getfixturevalue("s3_root"))


def put(
    layout: RunLayout, stage: str, iteration: int | None, inputs: dict[str, str], *, name: str | None = None
) -> Artifact:
    """Publish an artifact; checkpoints and warm starts hold a model, the others a table, all a log."""
    of_model = stage in ("checkpoint", "warm_start")
    prefix = {"checkpoint": layout.checkpoints, "warm_start": layout.warm_start}.get(stage)
    label = name or f"{layout.run} {stage} {iteration}"
    digest = digest_of(label.replace("checkpoint", "update"))
    with layout.store.begin(
        prefix or layout.stage(iteration or 0, stage),
        digest,
        stage=stage,
        run=layout.run,
        iteration=iteration,
        code="c0de",
        config={},
        inputs=inputs,
    ) as writer:
        if of_model:
            with writer.local_folder() as folder:
                (folder / "model.safetensors").write_bytes(f"weights of {label}".encode() * 50)
                (folder / "config.json").write_text("{}")
        else:
            writer.write_rows(Chain, chains(3, run=label))
        writer.write_log("metrics.json", "{}\n")
        return writer.publish(counts={"rows": 3})


def iteration_of(layout: RunLayout, iteration: int, start: str) -> Iterator[Artifact]:
    """Publish an iteration's stages and its checkpoint, in order."""
    policy = digest_of(f"{layout.run} update {iteration - 1}") if iteration else start
    yield put(layout, "evaluate", iteration, {"policy": policy})
    rollout = put(layout, "rollout", iteration, {"policy": policy})
    yield rollout
    label = put(layout, "label", iteration, {"rollout": rollout.digest})
    yield label
    inputs = {"policy": policy, "reference": start, "rollout": rollout.digest, "label": label.digest}
    yield put(layout, "checkpoint", iteration, inputs)
    yield put(layout, "update", iteration, inputs)


def make_run(root: str, iterations: int = 4, run: str = "run") -> RunLayout:
    """Publish a run of some iterations from a shared warm start."""
    layout = RunLayout(root, run)
    start = put(layout, "warm_start", None, {}, name="start").digest
    for iteration in range(iterations):
        list(iteration_of(layout, iteration, start))
    layout.store.write_text(layout.config, CONFIG.replace("run", run, 1))
    layout.store.write_text(layout.templates, "{}\n")
    return layout
