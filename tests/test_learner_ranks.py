"""Ranks as processes: the update of one rank, a rank that is killed, errors that cross, and no orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pivotopd.config import UpdateSection
from pivotopd.errors import ArtifactError, ClusterError, NothingToTrainOn
from pivotopd.learner import Learner
from pivotopd.learner_ranks import LearnerGroup, Start
from pivotopd.learner_state import STATE_FILE
from pivotopd.models.checkpoint import load_policy, save_policy, weights_digest
from pivotopd.training_rows import TrainingRow
from tests.conftest import ROOT
from tests.learner_cases import flat, make_rows, policy, section


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("policy")
    save_policy(policy(), place)
    return place


@pytest.fixture(scope="module")
def rows() -> list[TrainingRow]:
    return make_rows(policy().model)


def two(**changes: object) -> UpdateSection:
    return section(ranks=2, **changes)


@pytest.fixture(scope="module")
def group(folder: Path) -> Iterator[LearnerGroup]:
    made = LearnerGroup(Start(folder, two(), state=None, threads=1))
    yield made
    made.close()


@pytest.mark.slow
def test_two_ranks_do_what_one_does_and_stay(
    group: LearnerGroup, folder: Path, rows: list[TrainingRow], tmp_path: Path
) -> None:
    made = load_policy(folder)
    begin, processes = flat(made.model), group.process_ids
    with Learner(made, section()) as learner:
        wanted = [*learner.update(rows, 1), *learner.update(rows, 2)]
    found = [*group.train(rows, 1, None), *group.train(rows, 2, None)]
    assert [report.tokens for report in found] == [report.tokens for report in wanted]
    assert [report.loss for report in found] == pytest.approx([one.loss for one in wanted], rel=1e-4)
    group.check_finite("here", "there")
    group.save(tmp_path)
    assert group.weights_digest() == weights_digest(tmp_path)
    moved = (flat(made.model) - begin).norm()
    assert float((flat(load_policy(tmp_path).model) - flat(made.model)).norm() / moved) < 2e-3
    assert (tmp_path / STATE_FILE).is_file()
    assert group.process_ids == processes  # the same processes through both updates


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_others_stop(folder: Path, rows: list[TrainingRow]) -> None:
    group = LearnerGroup(Start(folder, two(), state=None, threads=1))
    processes = group.process_ids
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(ClusterError, match=r"rank 1 of 2 .* SIGKILL") as caught:
        group.train(rows, 1, None)
    assert "resumes" in str(caught.value)
    assert not any(alive(process) for process in processes)
    with pytest.raises(ClusterError, match="stopped"):
        group.train(rows, 1, None)


@pytest.mark.slow
def test_an_error_of_the_ranks_is_raised_here(folder: Path, rows: list[TrainingRow]) -> None:
    with pytest.raises(ArtifactError, match="no optimizer state"):
        LearnerGroup(Start(folder, two(), state=folder, threads=1))
    group = LearnerGroup(Start(folder, two(), state=None, threads=1))
    processes = group.process_ids
    cut = [
        TrainingRow(
            row.prompt_ids, row.response_ids, row.advantage, row.old_nats, row.reference_nats,
            np.zeros_like(row.mask), row.is_recovery,
        )
        for row in rows
    ]  # fmt: skip
    with pytest.raises(NothingToTrainOn):
        group.train(cut, 1, None)
    assert not any(alive(process) for process in processes)


PARENT = """
import sys, time
from pathlib import Path
from pivotopd.learner_ranks import LearnerGroup, Start
from tests.learner_cases import section

if __name__ == "__main__":
    group = LearnerGroup(Start(Path(sys.argv[1]), section(ranks=2), state=None, threads=1))
    print(*group.process_ids, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_ranks_leave_when_their_parent_is_killed(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        assert all(alive(process) for process in processes)
    finally:
        parent.kill()
        parent.wait()
    for _ in range(600):
        if not any(running(process) for process in processes):
            break
        time.sleep(0.05)
    assert not any(running(process) for process in processes)


def running(process: int) -> bool:
    """Whether it runs; one that waits for init to collect it does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
