"""One finished run, made stage by stage in this process; tests that damage something copy it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact
from stages.runs import open_run, rerun
from tests.small_student import small_config
from tests.stages.reruns import run_stage


@dataclass(frozen=True)
class StoredRun:
    """A run on disk.

    Attributes:
        root: Storage root.
    """

    root: Path

    @property
    def uri(self) -> str:
        return f"{self.root}/small"

    def run(self, stage: str, iteration: int | None, *overrides: str, follow: bool = False) -> list[str]:
        """Run a stage and return what it says."""
        return run_stage(self.uri, stage, iteration, *overrides, follow=follow)

    def artifact(self, stage: str, iteration: int, *overrides: str) -> Artifact:
        """Return a stage's artifact, which must exist."""
        work, plan = rerun(self.uri, stage, iteration, list(overrides))
        job = plan.evaluate(iteration) if stage == "evaluate" else plan.job(stage, iteration)
        found = work.find(job)
        assert found is not None
        return found

    def checkpoint(self, iteration: int) -> Artifact:
        """Return the checkpoint of an iteration's update."""
        work, plan = rerun(self.uri, "update", iteration, [])
        source = plan.policy(iteration + 1)
        return work.store.require(source.prefix, source.digest)

    def files(self) -> dict[str, bytes]:
        """Return every file's bytes."""
        return {str(path): path.read_bytes() for path in sorted(self.root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def finished(student: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    run = StoredRun(tmp_path_factory.mktemp("stages") / "root")
    open_run(small_config(run.root, student))
    run.run("evaluate", 0)
    for iteration in (0, 1):
        run.run("rollout", iteration, follow=True)
    run.run("evaluate", 2)
    return run


@pytest.fixture
def copy(finished: StoredRun, tmp_path: Path) -> Callable[[], StoredRun]:
    def copied() -> StoredRun:
        shutil.copytree(finished.root, tmp_path / "root")
        return StoredRun(tmp_path / "root")

    return copied
