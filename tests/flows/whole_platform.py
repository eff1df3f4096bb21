"""All that a run can stand on at once: bucket, MLflow and Prefect servers, SLURM; each part can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from pivotopd.artifacts import Store
from pivotopd.compiled_operators import extensions_folder
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from tests.child_process import end_with_parent
from tests.flows.runs import environment_of, source
from tests.mlflow_server import MlflowServer, require_boto3
from tests.s3_server import S3Server, use_server
from tests.servers import PATIENCE_S, StartedServer, free_ports, healthy, tail
from tests.slurm_node import slurm_node

ROOT: Final = "s3://tests/killed/runs"
VICTIMS: Final = ("orchestrator", "stage", "batch script", "S3 server", "MLflow server", "Prefect server")
_LOOK_S: Final = 0.3


@dataclass
class PrefectServer(StartedServer):
    """A Prefect server with a database of its own.

    Attributes:
        port: Its port.
    """

    NAME: ClassVar[str] = "Prefect"

    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def url(self) -> str:
        """Address of its API."""
        return f"http://127.0.0.1:{self.port}/api"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "prefect", "server", "start", "--port", str(self.port)]

    def variables(self) -> Mapping[str, str]:
        return environment_of(self.folder) | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

    def answers(self) -> bool:
        return healthy(f"{self.url}/health")

    def asked(self, path: str, body: dict[str, Any]) -> Any:
        """Return what its API answers to a question, such as ``flow_runs/filter``."""
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@dataclass
class Platform:
    """The servers, SLURM, and the command that waits for its jobs.

    Attributes:
        config: The run's configuration; its root is in the bucket.
        folder: Logs, homes, and the jobs' shared folder.
        s3: The bucket's server.
        mlflow: The MLflow server.
        prefect: The Prefect server.
        variables: Environment of the command and of its jobs.
        starts: How often the command was started.
    """

    config: RunConfig
    folder: Path
    s3: S3Server
    mlflow: MlflowServer
    prefect: PrefectServer
    variables: dict[str, str]
    starts: int = 0
    _command: subprocess.Popen[bytes] | None = None

    def pivotopd(self, log: str, config: RunConfig, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command on a configuration; its output is added to a log."""
        file = self.folder / f"{log}.yaml"
        file.write_text(dump_config(config))
        with (self.folder / f"{log}.log").open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *arguments, str(file)],
                cwd=source(),
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def command(self) -> subprocess.Popen[bytes]:
        """Return the living command; start it where there is none, as a person does after it has ended."""
        if self._command is None or self._command.poll() is not None:
            self.starts += 1
            self._command = self.pivotopd("command", self.config, "submit", "--per-stage")
        return self._command

    def stages(self) -> dict[int, list[str]]:
        """Return the stages that run as jobs: process ids and ``python -m stages.NAME --run=... ...``."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                words = words_of(int(folder.name)) if folder.name.isdigit() else []
                if len(words) > 4 and words[1] == "-m" and words[3].startswith(f"--run={ROOT}/"):
                    found[int(folder.name)] = words
        return found

    def kill(self, victim: str, pause_s: float) -> str:
        """Kill one part outright after a pause, start a server again, and say who was killed.

        Args:
            victim: One of :data:`VICTIMS`.
            pause_s: Of a job, seconds after it was seen at work: it may import, work, publish or end by then.
        """
        servers: dict[str, StartedServer] = {
            "S3 server": self.s3, "MLflow server": self.mlflow, "Prefect server": self.prefect
        }  # fmt: skip
        if victim in ("stage", "batch script"):
            return self._kill_job(victim, pause_s)
        time.sleep(pause_s)
        command = self.command()
        if victim == "orchestrator":
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.wait(timeout=PATIENCE_S)
        else:
            servers[victim].stop()
            servers[victim].start()
            servers[victim].wait()
        return victim

    def begun(self) -> list[str]:
        """Return the names of the jobs that have begun, one for each time: such as ``update-0001``."""
        found = (self.folder / "jobs").rglob("log.txt")
        return sorted(file.parent.parent.name.rpartition("-")[0] for file in found)

    def wait_until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds, or fail with what all parts said last."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {PATIENCE_S:g} s for {what}, in vain\n{self.story()}", pytrace=False)
            time.sleep(_LOOK_S)

    def story(self) -> str:
        """Return what the parts said last: the command, SLURM, the newest jobs, the servers."""
        told = [tail(self.folder / "command.log", 50)]
        for arguments in (["squeue", "--states=all", "--format=%i %j %T %r"], ["sinfo"]):
            with suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
                told.append(f"--- {arguments[0]}\n{done.stdout}{done.stderr}")
        jobs = sorted((self.folder / "jobs").rglob("log.txt"), key=lambda file: file.stat().st_mtime)
        told += [tail(file) for file in jobs[-3:]]
        told += [tail(file) for file in (self.s3.log, self.mlflow.log, self.prefect.log)]
        return "\n".join(told)

    def close(self) -> None:
        """Kill the command; its jobs end with SLURM."""
        if self._command is not None and self._command.poll() is None:
            os.killpg(self._command.pid, signal.SIGKILL)
            self._command.wait()

    def _kill_job(self, victim: str, pause_s: float) -> str:
        """Kill a stage that runs as a job, or the batch script above it; wait until there is one."""
        killed: list[str] = []

        def met() -> bool:
            self.command()  # one that ended because of a broken job is started again
            for process, words in self.stages().items():
                if self._published(words):
                    continue
                time.sleep(pause_s)
                with suppress(OSError):
                    script = script_of(process)
                    if script is not None:  # without one, it is what a killed script left behind
                        os.kill(process if victim == "stage" else script, signal.SIGKILL)
                        killed.append(f"{victim} of {words[2]} {words[4]}")
                        return True
            return False

        self.wait_until(met, f"a {victim} to kill")
        return killed[0]

    def _published(self, words: list[str]) -> bool:
        """Say whether the artifact is there that a stage's command line is to make."""
        stage, iteration = words[2].rpartition(".")[2], int(words[4].removeprefix("--iteration="))
        folder = f"{self.config.name}/iterations/{iteration:04d}/{stage}"
        return any(path.endswith("/manifest.json") for path in Store(ROOT).blobs.find(folder))


def words_of(process: int) -> list[str]:
    """Return the command line of a process (proc(5)); nothing of one that has ended."""
    return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")


def script_of(stage: int) -> int | None:
    """Return the process id of the batch script that a stage runs in, or None where that is gone."""
    parent = int(Path(f"/proc/{stage}/stat").read_text().rpartition(")")[2].split()[1])
    return parent if any(word.endswith("/slurm_script") for word in words_of(parent)) else None


@contextmanager
def whole_platform(config: RunConfig, folder: Path) -> Iterator[Platform]:
    """Start everything, and yield it once all of it answers; skip where a part cannot be here."""
    require_boto3()
    operators = extensions_folder().parent
    with ExitStack() as stack:
        s3 = S3Server(folder / "s3")
        mlflow = MlflowServer(folder / "mlflow", s3.url)
        prefect = PrefectServer(folder / "prefect")
        slurm = stack.enter_context(slurm_node())
        for server in (s3, mlflow, prefect):  # all at once: each takes seconds of imports
            stack.callback(server.stop)
            server.start()
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        use_server(patch, s3.url)
        patch.setenv("SLURM_CONF", str(slurm))
        # Downloads are this test's own; operators that are compiled already are not compiled again.
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        (folder / "cache/pivotopd").mkdir(parents=True)
        operators.mkdir(parents=True, exist_ok=True)
        (folder / "cache/pivotopd" / operators.name).symlink_to(operators)
        (folder / "home").mkdir()
        variables = environment_of(folder / "home")
        variables |= {"PREFECT_API_URL": prefect.url, "MLFLOW_TRACKING_URI": mlflow.url}
        one = Platform(config, folder, s3, mlflow, prefect, variables)
        stack.callback(one.close)
        for server in (s3, prefect, mlflow):
            server.wait()
        yield one
