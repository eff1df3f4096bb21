"""The update stage on ranks that a launcher started, as torchrun and srun do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from pivotopd.errors import ConfigError
from pivotopd.records import Update
from stages.launched_ranks import follows
from tests.chat_server import closed_port
from tests.stages.conftest import StoredRun

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
RATE = "update.learning_rate=2e-4"
PATIENCE_S = 300


def ranks(run: StoredRun, *overrides: str, meeting: str = "") -> list[subprocess.Popen[str]]:
    """Start two ranks of the first update as srun does, each with its own variables."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": meeting or str(closed_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "stages.update", "--run", run.uri, "--iteration", "0", *overrides],
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def ends(started: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Return each rank's exit code and what it said."""
    said = [one.communicate(timeout=PATIENCE_S) for one in started]
    return [(one.returncode, "".join(text)) for one, text in zip(started, said, strict=True)]


def are_joined(one: int, other: int, meeting: str) -> bool:
    """Tell whether two ranks talk directly on two channels: those of the learner and of what is asked."""
    try:
        links = [psutil.Process(pid).net_connections("tcp") for pid in (one, other)]
    except psutil.Error:
        return False
    of_the_other = {link.laddr.port for link in links[1]} - {int(meeting)}
    return sum(bool(link.raddr) and link.raddr.port in of_the_other for link in links[0]) >= 2


def weights(run: StoredRun, *overrides: str) -> dict[str, np.ndarray]:
    digest = run.artifact("update", 0, *overrides).digest
    (file,) = (Path(run.uri) / "checkpoints" / digest).rglob("model.safetensors")
    return load_file(file)


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "RANK"])
def test_a_launchers_variable_that_is_no_number(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(variable, "two")
    with pytest.raises(ConfigError, match="'two' is no number") as caught:
        follows()
    assert variable in str(caught.value.where)


def test_under_torchrun_an_update_is_that_of_one_rank(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=0"]
    launcher += ["--master-addr=127.0.0.1", f"--master-port={closed_port()}"]
    done = subprocess.run(
        [*launcher, "-m", "--", "stages.update", "--run", run.uri, "--iteration", "0", RATE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    two, steps = weights(run, RATE), run.artifact("update", 0, RATE).rows(Update)
    found = run.artifact("update", 0, RATE)
    for folder in (Path(found.uri), Path(run.uri) / "checkpoints" / found.digest):
        shutil.rmtree(folder)
    run.run("update", 0, RATE)
    one = weights(run, RATE)
    assert two.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=0, atol=2e-6, err_msg=name)
    alone = run.artifact("update", 0, RATE).rows(Update)
    assert [step.tokens for step in steps] == [step.tokens for step in alone]
    np.testing.assert_allclose([step.loss for step in steps], [step.loss for step in alone], atol=1e-6)


def test_what_is_done_lets_all_ranks_leave(copy: Callable[[], StoredRun]) -> None:
    (first, said), (second, heard) = ends(ranks(copy()))
    assert (first, second) == (0, 0), said + heard
    assert "cached" in said


def test_a_number_of_ranks_that_contradicts_the_launcher(copy: Callable[[], StoredRun]) -> None:
    (code, said), _ = ends(ranks(copy(), RATE, "update.ranks=3"))
    assert code == 2, said
    assert "2 ranks were started, and 3 are asked for" in said


def test_a_rank_that_dies_ends_the_other_and_publishes_nothing(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    before = run.files()
    at = str(closed_port())
    first, second = ranks(run, RATE, meeting=at)
    deadline = time.monotonic() + PATIENCE_S
    while not are_joined(second.pid, first.pid, at):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.05)
    second.kill()
    (code, said), _ = ends([first, second])
    assert code == 9, said
    assert "a rank of 2 ended" in said
    assert run.files() == before
