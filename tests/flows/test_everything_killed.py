"""A training on a bucket, MLflow and Prefect servers and SLURM, with each of them killed at random points.

PIVOTOPD_KILLS says how often something is killed (5 by default; 20 is the full check). Every victim in turn:
the waiting command, a stage, the batch script that runs one, the S3 server, the MLflow server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from pivotopd.seeds import rng_of
from pivotopd.tracking_mlflow import RUN_URI_TAG
from stages.metrics import metrics_of
from tests.child_process import end_with_parent
from tests.flows.runs import PATIENCE_S, environment_of, source, train
from tests.mlflow_server import MlflowServer, require_boto3
from tests.s3_server import S3Server, free_ports, use_server, weed
from tests.slurm_node import slurm_node
from tests.small_student import small_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]
KILLS = int(os.environ.get("PIVOTOPD_KILLS", "5"))
ROOT = "s3://tests/killed/runs"
VICTIMS = ("orchestrator", "stage", "batch script", "S3 server", "MLflow server")
LAST_ARTIFACTS = 3
"""The kills come before these, so that each meets a run that is under way."""
STARTS = 12
"""Most starts of the command after the last kill; one is enough where no job is left broken."""


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.2)


def parent_of(process: int) -> int:
    """Return the process id of a process's parent (proc(5), stat)."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """Start a Prefect server and yield the address of its API."""
    port = free_ports(1)[0]
    folder.mkdir()
    variables = environment_of(folder) | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
        )
    address = f"http://127.0.0.1:{port}/api"

    def answers() -> bool:
        assert process.poll() is None, (folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(answers, "Prefect server")
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Platform:
    """All that a run stands on, and the command that waits for it.

    Attributes:
        config: The run's configuration.
        folder: Logs, homes, and the jobs' shared folder.
        s3: The bucket's server.
        mlflow: The MLflow server.
        variables: Environment of the command and of its jobs.
    """

    config: RunConfig
    folder: Path
    s3: S3Server
    mlflow: MlflowServer
    variables: dict[str, str]
    starts: int = 0
    _command: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Return the living command; start it where there is none."""
        if self._command is None or self._command.poll() is not None:
            self.starts += 1
            file = self.folder / "config.yaml"
            file.write_text(dump_config(self.config))
            with (self.folder / "command.log").open("ab") as log:
                self._command = subprocess.Popen(
                    [sys.executable, "-m", "flows.cli", "submit", str(file), "--per-stage"],
                    cwd=source(),
                    env=self.variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        return self._command

    def stages(self) -> list[int]:
        """Return the process ids of the stages that run as jobs."""
        found = []
        mark = f"--run={ROOT}/".encode()
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit():
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    if len(words) > 2 and words[1] == b"-m" and any(word.startswith(mark) for word in words):
                        found.append(int(folder.name))
        return found

    def kill(self, victim: str) -> None:
        """Kill one part outright, and start it again where it is a server."""
        if victim == "orchestrator":
            command = self.start()
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
        elif victim in ("stage", "batch script"):
            self._wait_for_stage()
            for process in self.stages():
                with suppress(OSError):
                    parent = int(
                        (Path("/proc") / str(process) / "stat").read_text().rsplit(")", 1)[1].split()[1]
                    )
                    os.kill(process if victim == "stage" else parent, signal.SIGKILL)
        else:
            server = self.s3 if victim == "S3 server" else self.mlflow
            server.stop()
            server.start()
            server.wait()

    def _wait_for_stage(self) -> None:
        """Wait until a stage runs; a command that ended because of a broken job is started again."""

        def runs() -> bool:
            self.start()
            return bool(self.stages())

        wait_until(runs, "a stage that runs")

    def close(self) -> None:
        if self._command is not None and self._command.poll() is None:
            os.killpg(self._command.pid, signal.SIGKILL)
            self._command.wait()


def published(root: str) -> dict[str, Artifact]:
    return {one.path: one for one in list_artifacts(Store(root))}


def contents(artifacts: dict[str, Artifact]) -> dict[str, str]:
    return {path: one.manifest.content_digest for path, one in artifacts.items()}


@pytest.fixture
def platform(student: Path, tmp_path: Path) -> Iterator[Platform]:
    require_boto3()
    with ExitStack() as stack:
        slurm = stack.enter_context(slurm_node())
        s3 = S3Server(weed(), tmp_path / "s3")
        stack.callback(s3.stop)
        s3.start()
        s3.wait()
        mlflow = MlflowServer(tmp_path / "mlflow", s3.url)
        stack.callback(mlflow.stop)
        mlflow.start()
        prefect = stack.enter_context(prefect_server(tmp_path / "prefect"))
        mlflow.wait()
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        use_server(patch, s3.url)
        patch.setenv("SLURM_CONF", str(slurm))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        launch = {
            "resources": {"memory_gb": 2, "time_limit_min": 60},
            "slurm": {"poll_s": 0.5, "folder": str(tmp_path / "jobs")},
        }
        config = small_config(Path("unused"), student, iterations=3, launch=launch)
        (tmp_path / "home").mkdir()
        variables = environment_of(tmp_path / "home")
        variables |= {"PREFECT_API_URL": prefect, "MLFLOW_TRACKING_URI": mlflow.url}
        one = Platform(config.model_copy(update={"root": ROOT}), tmp_path, s3, mlflow, variables)
        stack.callback(one.close)
        yield one


def test_killed_anywhere_it_ends_with_the_same_policy_and_artifacts(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = tmp_path / "undisturbed"
    calm = train(platform.config.model_copy(update={"root": str(local)}), tmp_path / "calm")
    assert calm.returncode == 0, calm.stderr
    undisturbed = published(str(local))

    moments = rng_of("moments of kills on a platform", 0)
    for kill in range(KILLS):
        share = (kill + 1) / KILLS * (len(undisturbed) - LAST_ARTIFACTS)
        _advance(platform, int(share))
        time.sleep(float(moments.uniform(0, 3)))  # inside a stage, between its files, or at the start
        platform.start()
        platform.kill(VICTIMS[kill % len(VICTIMS)])
    _finish(platform)

    last = published(ROOT)
    assert contents(last) == contents(undisturbed)
    stages = [one for one in last.values() if one.manifest.stage != "checkpoint"]
    begun = sum(1 for _ in (platform.folder / "jobs").rglob("log.txt"))
    redone = begun - len(stages)
    with capsys.disabled():
        told = (
            f"{KILLS} kills, {platform.starts} starts of the command, {redone} of {len(stages)} stages redone"
        )
        sys.stdout.write(f"\n{told}\n")
    assert 0 <= redone <= KILLS, "a kill costs at most the stage that it meets"
    _check_tracking(platform, stages)


def _advance(platform: Platform, wanted: int) -> None:
    """Wait until so many artifacts are published; start the command again where a broken job ended it."""

    def reached() -> bool:
        if len(published(ROOT)) >= wanted:
            return True
        platform.start()
        return False

    wait_until(reached, f"{wanted} artifacts")


def _finish(platform: Platform) -> None:
    """Start the command until it says that all is done."""
    for _ in range(STARTS):
        if platform.start().wait(timeout=PATIENCE_S) == 0:
            return
    pytest.fail((platform.folder / "command.log").read_text()[-5000:])


def _check_tracking(platform: Platform, stages: list[Artifact]) -> None:
    """Every metric of every stage stands in MLflow once, and every artifact is an input of the run."""
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
                at_step = {item.value for item in found if item.step == one.manifest.iteration}
                assert at_step == {value}, name
