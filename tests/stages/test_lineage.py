"""What an iteration's newest result was made of, from manifests alone."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact, RunLayout
from pivotopd.records import Chain
from stages.lineage import lineage
from stages.plan import LOOP


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(str(tmp_path), "run")


def publish(
    layout: RunLayout, stage: str, name: str, inputs: Mapping[str, Artifact] | None = None, iteration: int = 3
) -> Artifact:
    """Publish an artifact without rows; later ones are newer."""
    digests = {role: artifact.digest for role, artifact in (inputs or {}).items()}
    with layout.store.begin(
        layout.stage(iteration, stage),
        sha256(f"{stage} {name}".encode()).hexdigest(),
        stage=stage,
        run=layout.run,
        iteration=iteration,
        code="c0de",
        config={},
        inputs={"policy": "f" * 64, **digests},
    ) as writer:
        writer.write_rows(Chain, [])
        return writer.publish(counts={}, seconds={}, notes={})


def chain(
    layout: RunLayout, name: str, given: Mapping[str, Artifact] | None = None, last: str = "update"
) -> dict[str, Artifact]:
    """Publish the stages of an iteration in order, from those given, up to a last one."""
    made = dict(given or {})
    for stage in LOOP[len(made) : LOOP.index(last) + 1]:
        made[stage] = publish(layout, stage, name, made)
    return made


def digests(found: Mapping[str, Artifact]) -> dict[str, str]:
    return {stage: artifact.digest for stage, artifact in found.items()}


def test_an_iteration_without_artifacts_has_no_lineage(layout: RunLayout) -> None:
    assert lineage(layout, 3) == {}
    chain(layout, "first")
    assert lineage(layout, 2) == {}
    assert lineage(layout, 30) == {}


def test_the_inputs_of_the_newest_update_are_followed(layout: RunLayout) -> None:
    first = chain(layout, "first")
    assert digests(lineage(layout, 3)) == digests(first)
    assert list(lineage(layout, 3)) == list(reversed(LOOP))
    second = chain(layout, "second")
    assert digests(lineage(layout, 3)) == digests(second)
    # Newer than the newest update, and read by none.
    for stage in ("rollout", "label", "recover"):
        publish(layout, stage, "unread")
    assert digests(lineage(layout, 3)) == digests(second)


def test_a_rerun_of_recover_makes_the_newest_chain_on_the_old_rollout(layout: RunLayout) -> None:
    first = chain(layout, "first")
    rerun = chain(layout, "deeper", {stage: first[stage] for stage in ("rollout", "label")})
    found = lineage(layout, 3)
    assert digests(found) == digests(rerun)
    assert found["rollout"].digest == first["rollout"].digest
    assert found["recover"].digest != first["recover"].digest


def test_an_unfinished_iteration_starts_at_its_latest_stage(layout: RunLayout) -> None:
    made = chain(layout, "first", last="label")
    publish(layout, "rollout", "unread")
    assert digests(lineage(layout, 3)) == digests(made)


def test_a_method_without_labels_leaves_no_gap_to_fill(layout: RunLayout) -> None:
    rollout = publish(layout, "rollout", "short")
    labels = publish(layout, "label", "of another method", {"rollout": rollout})
    update = publish(layout, "update", "short", {"rollout": rollout})
    found = lineage(layout, 3)
    assert digests(found) == digests({"update": update, "rollout": rollout})
    assert labels.digest not in digests(found).values()


def test_an_evaluation_is_no_part_of_it(layout: RunLayout) -> None:
    made = chain(layout, "first")
    publish(layout, "evaluate", "later", {"policy": made["update"]})
    assert digests(lineage(layout, 3)) == digests(made)
