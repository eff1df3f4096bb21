"""Stages whose environment plays in worker processes: the same artifacts, and no process left."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psutil
import pytest

from pivotopd.environments.workers import WorkerEnvironment
from stages.plan import LOOP
from stages.runner import perform
from stages.runs import open_run
from tests.small_student import small_config
from tests.stages.test_stream import content, iteration

CASES: dict[str, dict[str, object]] = {
    "snapshots": {"recovery": {"depth": 3, "limit": 1000}},
    "replay": {"recovery": {"depth": 2, "limit": 1000, "reach": "replay"}},
}


@pytest.mark.parametrize("case", CASES)
def test_workers_change_no_artifact(case: str, student: Path, tmp_path: Path) -> None:
    plain = iteration(small_config(tmp_path / "plain", student, **CASES[case]), "none")
    there = small_config(tmp_path / "workers", student, **CASES[case], environment__workers=2)
    work, plan = open_run(there)
    with closing(work):
        for stage in LOOP[:3]:
            done = perform(work, plan.job(stage, 0))
            assert done.job.digest == plain[stage].job.digest
            assert content(done.artifact) == content(plain[stage].artifact), stage
        played_by = work.environment.inner
        assert isinstance(played_by, WorkerEnvironment)
        processes = played_by.process_ids
        assert len(processes) == 2
    assert not any(psutil.pid_exists(one) for one in processes)
