"""Servers in which vLLM generates: one of a policy, reloaded and probed, and one of a teacher."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pivotopd.errors import EngineFault
from pivotopd.models.base import ScoreRequest
from pivotopd.records import Lesson
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


TEACHER = {"engine": "vllm", "dtype": "float32", "prompt_tokens": 4072, "reply_tokens": 24}


@pytest.fixture(scope="module")
def servers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """One of the policy and one of a teacher, which start at the same time."""
    home = tmp_path_factory.mktemp("home")
    sizes = ("engine.kind=vllm", "engine.concurrency=8", "rollout.prompt_tokens=256")
    teaches = tuple(f"teacher.{key}={value}" for key, value in TEACHER.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        found = [
            ServerProcess(str(folder), home, (*sizes, "rollout.response_tokens=12")),
            ServerProcess(str(folder), home, (*teaches, "teacher.concurrency=8"), "teacher"),
        ]
    try:
        for one in found:
            one.wait()
        yield found
    finally:
        for one in found:
            one.kill()


def ends(server: ServerProcess, number: signal.Signals) -> None:
    """Ask a server to end, and see that nothing of vLLM is left."""
    left = engines_of(server.process.pid)
    assert left, "vLLM has processes of its own"
    server.process.send_signal(number)
    assert server.process.wait(timeout=GONE_S) == 0
    wait_until(lambda: not any(map(lives, left)), GONE_S, f"left over: {left}")


@pytest.fixture(scope="module")
def run(folder: Path, servers: list[ServerProcess], tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """An iteration and the rollout of the next, over the policy's server."""
    engine = {"kind": "vllm", "urls": [servers[0].url], "concurrency": 8}
    run = StoredRun(tmp_path_factory.mktemp("run") / "root")
    open_run(small_config(run.root, folder, engine=engine, update__idle_limit=2, **SHORT))
    run.run("rollout", 0, follow=True)
    run.run("rollout", 1)
    return run


def test_a_run_generates_on_a_vllm_server_that_ends_with_its_engine(
    run: StoredRun, servers: list[ServerProcess]
) -> None:
    for iteration in (0, 1):
        made = run.artifact("rollout", iteration)
        assert made.manifest.counts["engine_starts"] == 0
        assert made.manifest.counts["generated_tokens"] > 0
        assert 0 <= metrics_of(made)["rollout/parity_largest_nats"] < 0.01
    with closing(RemoteEngine(servers[0].url)) as remote:
        assert remote.health.kind == "vllm"
        assert remote.policy == run.checkpoint(0).manifest.digest
    ends(servers[0], signal.SIGINT)


def test_a_vllm_teacher_that_is_served_labels_and_ends_with_its_engine(
    run: StoredRun, folder: Path, servers: list[ServerProcess]
) -> None:
    server = servers[1]
    told = {"kind": "local", "path": str(folder), "urls": [server.url], "concurrency": 8} | TEACHER
    teacher = "teacher=" + json.dumps(told)
    run.run("label", 1, teacher)
    made = run.artifact("label", 1, teacher)
    counts, replies = made.manifest.counts, [one.raw_reply for one in made.rows(Lesson)]
    assert (counts["engine_starts"], counts["model_loads"]) == (0, 0)
    assert counts["teacher_calls"] > 1
    assert 0 < counts["teacher_reply_tokens"] <= 24 * counts["teacher_calls"]
    assert len(set(replies)) > 1, "replies differ by prompt"
    with closing(RemoteEngine(server.url, "teacher")) as remote:
        assert (remote.health.kind, remote.health.role) == ("vllm", "teacher")
        score = ScoreRequest([5, 6], [7])
        ((alone,), (again,)) = remote.score([score, score])
        assert alone == again < 0
    with pytest.raises(EngineFault, match="generates with vllm, the run wants transformers"):
        run.run("label", 1, "teacher=" + json.dumps(told | {"engine": "transformers"}))
    ends(server, signal.SIGTERM)
    with pytest.raises(EngineFault, match="the teacher server cannot be reached"):
        run.run("label", 1, "teacher=" + json.dumps(told | {"reply_tokens": 23}))
