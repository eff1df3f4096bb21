"""Time limits and several processes, on a real SLURM of one node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pivotopd.artifacts import RunLayout
from pivotopd.launch.base import Needed, Task
from pivotopd.launch.dispatch import Dispatcher, Submitted
from pivotopd.launch.records import Records
from pivotopd.launch.slurm import Slurm
from pivotopd.launch.slurm_section import SlurmSection
from tests.slurm_node import slurm_node

pytestmark = pytest.mark.slow(seconds=60)


@pytest.fixture(scope="module", autouse=True)
def node() -> Iterator[None]:
    with slurm_node() as configuration, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        yield


def dispatcher(root: Path, section: SlurmSection) -> Dispatcher:
    return Dispatcher(
        Slurm(section), Records(RunLayout(str(root), "run")), lambda _line: None, poll_s=0.3, vanished_s=5
    )


def test_several_processes_know_their_place(tmp_path: Path) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    program = f"import os; print('seen', *[os.environ[name] for name in {names!r}])"
    one = dispatcher(tmp_path, SlurmSection())
    submitted = one.ensure(Task("ranks", "ab" * 32, ("-c", program), Needed(memory_gb=0.1, ranks=2)))
    state = one.wait(submitted)
    log = submitted.log.read_text()
    assert state.phase == "done", log
    host = os.uname().nodename.partition(".")[0]
    assert sorted(line for line in log.splitlines() if line.startswith("seen")) == [
        f"seen 0 0 2 {host}",
        f"seen 1 1 2 {host}",
    ]


ENDS_WELL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
while True: time.sleep(1)
"""


def test_what_srun_runs_is_asked_to_end_and_not_killed() -> None:
    program = [sys.executable, "-m", "pivotopd.launch.srun", "--mem=100M", sys.executable, "-c", ENDS_WELL]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(60) == 3
    process.stdout.close()


STOPS_ONCE = """
import os, signal, sys, time
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0": sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
print("ready", flush=True)
while True: time.sleep(1)
"""
IGNORES = """
import signal, time
for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
time.sleep(600)
"""


@dataclass(frozen=True)
class Limited:
    """A job with a time limit, and who submitted it."""

    dispatcher: Dispatcher
    submitted: Submitted

    @classmethod
    def of(cls, folder: Path, digest: str, program: str, section: SlurmSection) -> Limited:
        needed = Needed(memory_gb=0.1, time_limit_min=1)
        one = dispatcher(folder, section)
        return cls(one, one.ensure(Task("limit", digest, ("-c", program), needed)))


@pytest.fixture(scope="module")
def at_their_limits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Limited, Limited]:
    """Jobs that reach their limits together: a minute, which is long, is the shortest."""
    return (
        Limited.of(tmp_path_factory.mktemp("stops"), "ab" * 32, STOPS_ONCE, SlurmSection(stop_ahead_s=30)),
        Limited.of(tmp_path_factory.mktemp("ignores"), "cd" * 32, IGNORES, SlurmSection()),
    )


def test_ahead_of_its_time_limit_a_job_stops_and_goes_on(at_their_limits: tuple[Limited, Limited]) -> None:
    job, _ = at_their_limits
    state = job.dispatcher.wait(job.submitted)
    assert (state.phase, state.exit_code) == ("done", 0), job.submitted.log.read_text()
    assert job.submitted.log.read_text().count("ready") == 1


def test_a_job_killed_for_its_time_limit_says_so(at_their_limits: tuple[Limited, Limited]) -> None:
    _, job = at_their_limits
    state = job.dispatcher.wait(job.submitted)
    assert (state.phase, state.reason) == ("failed", "TIMEOUT")
