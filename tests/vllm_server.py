"""A real language model behind a real server: vLLM on this CPU, the small model of ``infra/vllm_cpu.sh``."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.chat_server import closed_port
from tests.child_process import end_with_parent

REQUIRED = "PIVOTOPD_REQUIRE_VLLM"
"""Set to 1, a missing vLLM or model is a failure: a build server cannot skip these tests unnoticed."""
NAME = "smollm2"
START_S = 900.0
"""So that a server that never listens fails its test; it needs half a minute, on crowded cores more."""
STOP_S = 60.0


def model_folder() -> Path:
    """Return the folder of the served model; skip, or fail if it is required, where something lacks."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("PIVOTOPD_CACHE") or caches / "pivotopd")
    folder = cache / "models" / "smollm2-135m-instruct"
    missing = [] if importlib.util.find_spec("vllm") else ["vLLM is not installed"]
    missing += [] if (folder / "model.safetensors").is_file() else [f"there is no model at {folder}"]
    if missing:
        reason = f"{' and '.join(missing)}: bash infra/vllm_cpu.sh"
        if os.environ.get(REQUIRED, "0") not in ("", "0"):
            pytest.fail(f"{REQUIRED} is set, but: {reason}", pytrace=False)
        pytest.skip(reason)
    return folder


@dataclass(frozen=True)
class Said:
    """What a server has answered since its start, by its own count."""

    requests: int
    prompt_tokens: int
    reply_tokens: int

    def __sub__(self, earlier: Said) -> Said:
        return Said(
            self.requests - earlier.requests,
            self.prompt_tokens - earlier.prompt_tokens,
            self.reply_tokens - earlier.reply_tokens,
        )


@dataclass
class VllmServer:
    """A server in a process group of its own, on one port for all its starts.

    Attributes:
        model: Folder of the model.
        log: Where its output goes.
        key: The key that it asks for.
        port: Its loopback port.
    """

    model: Path
    log: Path
    key: str
    port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start it; it answers after :meth:`wait`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--served-model-name", NAME, "--host", "127.0.0.1",
            "--port", str(self.port), "--dtype", "float32", "--max-model-len", "4096",
            "--max-num-seqs", "8", "--enforce-eager",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.log.parent,
                env=kept
                | {
                    "VLLM_API_KEY": self.key,
                    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it shares the cores with the tests
                    "VLLM_NO_USAGE_STATS": "1",
                    "HF_HUB_OFFLINE": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not self._healthy():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                what = "does not answer" if ended is None else f"ended with {ended}"
                pytest.fail(f"the server {what}:\n{tail}")
            time.sleep(0.25)

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5).status_code == 200
        except httpx.RequestError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End its whole process group, and make sure that nothing of it is left."""
        if self._process is None:
            return
        group, self._process = self._process, None
        _signal_group(group.pid, number)
        deadline = time.monotonic() + STOP_S
        while group.poll() is None or living(group.pid):
            if time.monotonic() > deadline:
                _signal_group(group.pid, signal.SIGKILL)
            assert time.monotonic() < 2 * STOP_S + deadline, f"left over: {living(group.pid)}"
            time.sleep(0.1)

    def processes(self) -> list[int]:
        """Return the ids of its processes."""
        return [] if self._process is None else living(self._process.pid)

    def said(self) -> Said:
        """Return what it has answered; waits until it is idle and its counters stand still."""
        deadline = time.monotonic() + STOP_S
        last, text = "", self._metrics()
        while text != last or _metric(text, "num_requests_running"):
            assert time.monotonic() < deadline, text
            time.sleep(0.5)
            last, text = text, self._metrics()
        return Said(
            _metric(text, "request_success_total"),
            _metric(text, "prompt_tokens_total"),
            _metric(text, "generation_tokens_total"),
        )

    def _metrics(self) -> str:
        response = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30)
        return "\n".join(line for line in response.text.splitlines() if line.startswith("vllm:"))


def _metric(text: str, name: str) -> int:
    """Return a Prometheus counter or gauge, summed over its labels."""
    found = re.findall(rf"^vllm:{name}\{{[^}}]*\}} ([0-9.e+]+)$", text, re.MULTILINE)
    assert found, f"the server tells no {name}"
    return round(sum(map(float, found)))


def living(group: int) -> list[int]:
    """Return the ids of a process group's processes that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            # After the name in brackets: state, parent, group (proc(5)).
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if folder.name.isdigit() and int(its_group) == group and state not in "ZX":
            found.append(int(folder.name))
    return found


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


@contextmanager
def vllm_serving(folder: Path, key: str) -> Iterator[VllmServer]:
    """Start serving the small model, and end it after the block; the log lies in ``folder``."""
    server = VllmServer(model_folder(), folder / "server.log", key, closed_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()
