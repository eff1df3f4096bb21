"""A real language model behind a real server: vLLM on this CPU, the small model of ``infra/vllm_cpu.sh``."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from tests.servers import StartedServer, free_ports, healthy

REQUIRED = "PIVOTOPD_REQUIRE_VLLM"
"""Set to 1, a missing vLLM or model is a failure: a build server cannot skip these tests unnoticed."""
MODEL_NAME = "smollm2"
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
class VllmServer(StartedServer):
    """The server of one model.

    Attributes:
        model: Folder of the model.
        key: The key that it asks for.
        port: Its loopback port.
    """

    NAME: ClassVar[str] = "vLLM"

    model: Path
    key: str
    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--served-model-name", MODEL_NAME, "--host", "127.0.0.1",
            "--port", str(self.port), "--dtype", "float32", "--max-model-len", "4096",
            "--max-num-seqs", "8", "--enforce-eager",
        ]  # fmt: skip

    def variables(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        return kept | {
            "VLLM_API_KEY": self.key,
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it shares the cores with the tests
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def answers(self) -> bool:
        return healthy(f"http://127.0.0.1:{self.port}/health")

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
    server = VllmServer(folder, model_folder(), key)
    try:
        server.start()
        yield server
    finally:
        server.stop()
