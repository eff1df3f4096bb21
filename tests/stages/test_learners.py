"""The run's learner: started once, equal to rebuilt ones; several ranks, and one of them killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pivotopd.errors import ClusterError
from pivotopd.learner_ranks import LearnerGroup
from pivotopd.learner_state import STATE_FILE
from pivotopd.records import Update
from stages.runner import perform
from stages.runs import open_run, rerun
from tests.small_student import small_config
from tests.stages.conftest import StoredRun
from tests.stages.test_ledger import spent

RATE = "update.learning_rate=2e-4"


def test_one_learner_serves_a_run_and_gives_the_weights_of_rebuilt_ones(
    finished: StoredRun, student: Path, tmp_path: Path
) -> None:
    run = StoredRun(tmp_path / "root")
    work, plan = open_run(small_config(run.root, student))
    try:
        for iteration in (0, 1):
            for stage in plan.stages():
                perform(work, plan.job(stage, iteration))
    finally:
        work.close()
    used = [spent(run.artifact("update", iteration)) for iteration in (0, 1)]
    assert [one.learner_starts for one in used] == [1, 0]
    assert [spent(finished.artifact("update", iteration)).learner_starts for iteration in (0, 1)] == [1, 1]
    for iteration in (0, 1):
        kept, rebuilt = run.checkpoint(iteration), finished.checkpoint(iteration)
        assert kept.manifest.notes["weights"] == rebuilt.manifest.notes["weights"]
        state = [one.local_path() / STATE_FILE for one in (kept, rebuilt)]
        assert state[0].read_bytes() == state[1].read_bytes()


def test_a_learner_at_another_policy_is_not_used(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    work, plan = rerun(run.uri, "update", 0, ["update.learning_rate=3e-4"])
    later, other = rerun(run.uri, "update", 1, [RATE])
    job = other.job("update", 1)
    try:
        perform(work, plan.job("update", 0))
        held = work.held("learner")
        assert held is not None
        work.release("learner")
        later.hold("learner", held)
        perform(later, job)
        assert later.held("learner") is not held
        assert later.spent.learner_starts == 1
    finally:
        work.close()
        later.close()
    found = run.artifact("update", 1, RATE)
    shutil.rmtree(found.uri)
    shutil.rmtree(Path(run.uri) / "checkpoints" / job.digest)
    run.run("update", 1, RATE)
    assert run.artifact("update", 1, RATE).manifest.notes["weights"] == found.manifest.notes["weights"]


@pytest.mark.slow
def test_two_ranks_update_and_a_killed_one_leaves_nothing_half_done(
    copy: Callable[[], StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy()
    run.run("update", 1, RATE, "update.weight_decay=0.02")
    one = run.artifact("update", 1, RATE, "update.weight_decay=0.02")
    train, before = LearnerGroup.train, run.files()

    def killed(group: LearnerGroup, *arguments: Any) -> Any:
        os.kill(group.process_ids[0], signal.SIGKILL)
        return train(group, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LearnerGroup, "train", killed)
        with pytest.raises(ClusterError, match="rank 0 of 2"):
            run.run("update", 1, RATE, "update.ranks=2")
    assert run.files() == before
    run.run("update", 1, RATE, "update.ranks=2")
    two = run.artifact("update", 1, RATE, "update.ranks=2")
    assert spent(two).learner_starts == 1
    assert spent(two).trained_tokens == spent(one).trained_tokens
    losses = [[row.loss for row in made.rows(Update)] for made in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-6)


def test_adapters_go_on_from_a_checkpoint_as_they_do_in_a_kept_learner(student: Path, tmp_path: Path) -> None:
    found = []
    for name, together in (("kept", True), ("rebuilt", False)):
        run = StoredRun(tmp_path / name)
        config = small_config(run.root, student, update__lora={"rank": 4, "targets": ["q_proj", "v_proj"]})
        work, plan = open_run(config)
        try:
            for iteration in (0, 1):
                for stage in plan.stages():
                    perform(work, plan.job(stage, iteration))
                if not together:
                    work.close()
        finally:
            work.close()
        found.append([run.checkpoint(iteration).manifest.notes["weights"] for iteration in (0, 1)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
