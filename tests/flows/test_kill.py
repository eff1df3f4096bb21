"""A run that is killed or asked to stop goes on where it was, to the same weights, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.seeds import rng_of
from tests.child_process import wait_until
from tests.flows.runs import PATIENCE_S, finish, processes_of, start, train
from tests.small_student import small_config

pytestmark = [
    pytest.mark.slow(seconds=30),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]
KILLS = int(os.environ.get("PIVOTOPD_KILLS", "3"))


def published(root: Path) -> dict[str, Artifact]:
    """Return a root's artifacts by address; also checks that everything published can be read."""
    return {artifact.path: artifact for artifact in list_artifacts(Store(str(root)))}


def wait_for_line(process: subprocess.Popen[str], beginning: str) -> None:
    """Wait for a line of output; what follows is read by a thread, so that the pipe does not fill."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the run ended before it said {beginning!r}: {process.communicate()[1]}")


@pytest.fixture(scope="module")
def config(student: Path, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return small_config(tmp_path_factory.mktemp("undisturbed"), student)


@pytest.fixture(scope="module")
def undisturbed(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    done = train(config, tmp_path_factory.mktemp("home"))
    assert done.returncode == 0, done.stderr
    return published(Path(config.root))


def test_killed_at_any_moment_it_ends_with_the_same_weights(
    config: RunConfig, undisturbed: dict[str, Artifact], tmp_path: Path
) -> None:
    disturbed = config.model_copy(update={"root": str(tmp_path / "root")})
    moments = rng_of("moments of kills", 0)
    seen: dict[str, Artifact] = {}
    for kill in range(KILLS):
        process = start(disturbed, tmp_path / "home")
        goal = min(len(seen) + int(moments.integers(0, 4)), len(undisturbed) - 3)
        while len(published(tmp_path / "root")) < goal and process.poll() is None:
            time.sleep(0.05)
        time.sleep(float(moments.uniform(0, 0.5)))  # inside a stage, between its files, or at the start
        assert process.poll() is None, f"the run ended before kill {kill}: {process.communicate()}"
        process.kill()
        process.communicate()
        after = published(tmp_path / "root")
        assert {path: after[path].manifest for path in seen} == {p: one.manifest for p, one in seen.items()}
        seen = after
        wait_until(lambda: not processes_of(tmp_path / "home"), PATIENCE_S)
    assert seen
    done = train(disturbed, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    last = published(tmp_path / "root")
    assert {path: last[path].manifest.created_at for path in seen} == {
        path: one.manifest.created_at for path, one in seen.items()
    }, "what was published before a kill is not done again"
    assert {path: one.manifest.content_digest for path, one in last.items()} == {
        path: one.manifest.content_digest for path, one in undisturbed.items()
    }
    assert not list(tmp_path.rglob(".attempt-*")), "the next writer removes what a killed one left"
    wait_until(lambda: not processes_of(tmp_path / "home"), PATIENCE_S)


@pytest.mark.parametrize(
    ("number", "code", "last_line", "everyone"),
    [
        (signal.SIGTERM, 75, "  mend:  start the same command again: what is finished is kept", False),
        (signal.SIGUSR1, 75, "  mend:  start the same command again: what is finished is kept", False),
        (signal.SIGINT, 130, "interrupted", False),
        (signal.SIGINT, 130, "interrupted", True),  # as a terminal sends Ctrl-C: to Prefect's server too
    ],
)
def test_asked_to_stop_it_ends_with_its_code_and_can_go_on(
    config: RunConfig,
    undisturbed: dict[str, Artifact],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    last_line: str,
    everyone: bool,
) -> None:
    stopped = config.model_copy(update={"root": str(tmp_path / "root")})
    process = start(stopped, tmp_path / "home")
    wait_for_line(process, "recover 0000")
    if everyone:
        group = os.getpgid(process.pid)
        for child in psutil.Process(process.pid).children(recursive=True):
            if os.getpgid(child.pid) == group:
                child.send_signal(number)
    process.send_signal(number)
    stopper = threading.Timer(PATIENCE_S, process.kill)
    stopper.start()
    done = finish(process)
    stopper.cancel()
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == last_line
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3, done.stderr
    first = published(tmp_path / "root")
    assert len(first) >= 4
    assert {path: one.manifest.content_digest for path, one in first.items()}.items() <= {
        path: one.manifest.content_digest for path, one in undisturbed.items()
    }.items()
    wait_until(lambda: not processes_of(tmp_path / "home"), PATIENCE_S)
