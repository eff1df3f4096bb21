"""A policy server in which vLLM generates: a run reloads it, probes it, and its end leaves no process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pivotopd.services.client import RemoteEngine
from stages.metrics import metrics_of
from stages.runs import open_run
from tests.child_process import engines_of, lives, wait_until
from tests.flows.test_vllm_engine_runs import GONE_S, need_vllm, untrained
from tests.policy_server import ServerProcess
from tests.small_student import small_config
from tests.stages.conftest import StoredRun

pytestmark = pytest.mark.slow
SHORT = {"environment__max_turns": 3, "rollout__response_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_vllm()
    return untrained(tmp_path_factory.mktemp("vllm") / "student")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        sizes = ("engine.kind=vllm", "engine.concurrency=8", "rollout.prompt_tokens=256")
        one = ServerProcess(
            str(folder), tmp_path_factory.mktemp("home"), (*sizes, "rollout.response_tokens=12")
        )
    try:
        one.wait()
        yield one
    finally:
        one.kill()


def test_a_run_generates_on_a_vllm_server_that_ends_with_its_engine(
    folder: Path, server: ServerProcess, tmp_path: Path
) -> None:
    engine = {"kind": "vllm", "urls": [server.url], "concurrency": 8}
    run = StoredRun(tmp_path / "root")
    open_run(small_config(run.root, folder, engine=engine, update__idle_limit=2, **SHORT))
    run.run("rollout", 0, follow=True)
    run.run("rollout", 1)
    for iteration in (0, 1):
        made = run.artifact("rollout", iteration)
        assert made.manifest.counts["engine_starts"] == 0
        assert made.manifest.counts["generated_tokens"] > 0
        assert 0 <= metrics_of(made)["rollout/parity_largest_nats"] < 0.01
    with closing(RemoteEngine(server.url)) as remote:
        assert remote.health.kind == "vllm"
        assert remote.policy == run.checkpoint(0).manifest.digest
    left = engines_of(server.process.pid)
    assert left, "vLLM has processes of its own"
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=GONE_S) == 0
    wait_until(lambda: not any(map(lives, left)), GONE_S, f"left over: {left}")
