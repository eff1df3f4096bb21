"""A training on a bucket, MLflow and Prefect servers and SLURM, with each of them killed at random points.

The full check is PIVOTOPD_KILLS=20: three iterations, and 20 kills of all kinds in random order. Without it,
to save time, two iterations and 6 kills, one of each kind. Both end with the policy and the artifacts of an
undisturbed run, and with at most as many stages redone as kills that met a job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.seeds import rng_of
from pivotopd.tracking_mlflow import RUN_URI_TAG
from stages.metrics import metrics_of
from tests.flows.whole_platform import ROOT, VICTIMS, Platform, tail, whole_platform
from tests.small_student import small_config

pytestmark = [
    pytest.mark.slow(seconds=125),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]
KILLS = int(os.environ.get("PIVOTOPD_KILLS", str(len(VICTIMS))))
FULL_KILLS = 20
ITERATIONS = 3 if KILLS >= FULL_KILLS else 2
LAST_ARTIFACTS = 3
"""The kills come before these, so that each meets a run that is under way."""
STARTS = 12
"""Most starts of the command after the last kill; one is enough where no job is left broken."""
PAUSE_S = 3.0
"""Longest pause before a kill: some start-ups, some work, some ends of a stage lie in it."""


def published(root: str) -> dict[str, Artifact]:
    """Return a root's artifacts by address; also checks that everything published can be read."""
    return {one.path: one for one in list_artifacts(Store(root))}


def contents(artifacts: dict[str, Artifact]) -> dict[str, str]:
    return {path: one.manifest.content_digest for path, one in artifacts.items()}


@pytest.fixture
def platform(student: Path, tmp_path: Path) -> Iterator[Platform]:
    launch = {
        "resources": {"memory_gb": 2, "time_limit_min": 60},
        "slurm": {"poll_s": 0.5, "folder": str(tmp_path / "jobs")},
    }
    config = small_config("unused", student, iterations=ITERATIONS, launch=launch)
    with whole_platform(config.model_copy(update={"root": ROOT}), tmp_path) as one:
        yield one


def test_killed_anywhere_it_ends_with_the_same_policy_and_artifacts(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    platform.command()
    undisturbed = _undisturbed(platform, tmp_path / "undisturbed")
    killed = _kill_all(platform, len(undisturbed))
    _finish(platform)

    last = published(ROOT)
    assert contents(last) == contents(undisturbed)
    stages = [one for one in last.values() if one.manifest.stage != "checkpoint"]
    begun = Counter(platform.begun())
    assert len(begun) == len(stages)
    redone = {name: count - 1 for name, count in begun.items() if count > 1}
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *killed, ""]))
        sys.stdout.write(
            f"{KILLS} kills, {platform.starts} starts of the command, {sum(redone.values())} of {len(stages)}"
            f" stages redone {redone}, {time.monotonic() - began_s:.0f} s\n"
        )
    met = sum(" of stages." in line for line in killed)
    assert sum(redone.values()) <= met, f"no other kill costs a stage\n{platform.story()}"
    platform.wait_until(lambda: not platform.stages(), "the end of all stages")
    _check_tracking(platform, stages)


def _undisturbed(platform: Platform, root: Path) -> dict[str, Artifact]:
    """Return what the same training makes in a folder, in one process, while the disturbed one begins."""
    config = platform.config.model_dump(mode="json") | {"root": str(root), "tracking": {"enabled": False}}
    calm = platform.pivotopd("undisturbed", type(platform.config).model_validate(config), "train")
    try:
        platform.wait_until(lambda: calm.poll() is not None, "the undisturbed run")
    finally:
        calm.kill()
        calm.wait()
    assert calm.returncode == 0, tail(platform.folder / "undisturbed.log")
    return published(str(root))


def _kill_all(platform: Platform, artifacts: int) -> list[str]:
    """Kill the victims at moments spread over the run; return a line for each."""
    moments = rng_of("moments of kills on a platform", 0)
    order: list[str] = []
    killed = []
    for kill in range(KILLS):
        order = order or [VICTIMS[int(one)] for one in moments.permutation(len(VICTIMS))]
        wanted = int((kill + 1) / KILLS * (artifacts - LAST_ARTIFACTS))
        _advance(platform, wanted)
        pause_s = float(moments.uniform(0, PAUSE_S))
        killed.append(f"  from {wanted:2} artifacts on: {platform.kill(order.pop(), pause_s)}")
    return killed


def _advance(platform: Platform, wanted: int) -> None:
    """Wait until so many artifacts are published; start the command again where a broken job ended it."""
    blobs = Store(ROOT).blobs

    def reached() -> bool:
        if sum(path.endswith("/manifest.json") for path in blobs.find("")) >= wanted:
            return True
        platform.command()
        return False

    platform.wait_until(reached, f"{wanted} artifacts")


def _finish(platform: Platform) -> None:
    """Start the command until it says that all is done."""
    for _ in range(STARTS):
        if _ended(platform) == 0:
            return
    pytest.fail(f"{STARTS} starts of the command did not end the run\n{platform.story()}", pytrace=False)


def _ended(platform: Platform) -> int | None:
    """Wait for the end of the command, started where it is not under way, and return its exit code."""
    command = platform.command()
    platform.wait_until(lambda: command.poll() is not None, "the end of the command")
    return command.returncode


def _check_tracking(platform: Platform, stages: list[Artifact]) -> None:
    """Every metric of every stage stands in MLflow once, every artifact is an input, Prefect saw the end."""
    from mlflow import MlflowClient

    client: Any = MlflowClient(tracking_uri=platform.mlflow.url)
    experiments = [one.experiment_id for one in client.search_experiments()]
    [run] = client.search_runs(experiments, f"tags.`{RUN_URI_TAG}` = '{ROOT}/small'")
    assert run.info.status == "FINISHED"
    inputs = {json.loads(one.dataset.profile)["digest"] for one in run.inputs.dataset_inputs}
    assert inputs == {one.digest for one in stages}
    for one in stages:
        if one.manifest.stage == "update":
            for name, value in metrics_of(one).items():
                found = client.get_metric_history(run.info.run_id, name)
                at_step = [item.value for item in found if item.step == one.manifest.iteration]
                assert at_step == [value], name
    newest = platform.prefect.asked("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    assert newest["state"]["type"] == "COMPLETED"
    assert newest["id"] == run.data.tags["prefect_flow_run"]
