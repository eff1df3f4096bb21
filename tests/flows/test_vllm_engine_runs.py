"""A training whose responses vLLM writes: one engine for all of it, in step with the learner, no orphan."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import TinyStudent
from pivotopd.environments.alfworld.wording import phrases
from pivotopd.models.checkpoint import make_policy, save_policy
from pivotopd.models.tiny import build_model, build_tokenizer
from stages.metrics import metrics_of
from tests.flows.runs import PATIENCE_S, start, train
from tests.small_student import small_config

pytestmark = pytest.mark.slow
ITERATIONS = 3


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("PIVOTOPD_REQUIRE_VLLM") == "1":
            pytest.fail("PIVOTOPD_REQUIRE_VLLM=1, and vLLM is not installed")
        pytest.skip("vLLM is not installed (PIVOTOPD_REQUIRE_VLLM=1 makes this a failure)")


def untrained(folder: Path) -> Path:
    """Return a student with heads of 32 dimensions, the fewest that vLLM knows; what it says is noise."""
    tokenizer = build_tokenizer(phrases())
    shape = TinyStudent(layers=2, hidden=64, heads=2, kv_heads=1, intermediate=64)
    save_policy(make_policy(build_model(shape, tokenizer, 0), tokenizer), folder)
    return folder


def children_of(process: int) -> list[Path]:
    """Return the folders in /proc of a process's children that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if folder.name.isdigit() and int(parent) == process and state not in "ZX":
            found.append(folder)
    return found


def lives(folder: Path) -> bool:
    """Tell whether a process has not ended; where nobody reaps an orphan, its entry stays."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def stored(root: Path, stage: str) -> list[Artifact]:
    found = [one for one in list_artifacts(Store(str(root))) if one.manifest.stage == stage]
    return sorted(found, key=lambda one: one.manifest.iteration or 0)


def test_one_engine_serves_a_run_and_dies_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    root = tmp_path / "root"
    config = small_config(
        root, untrained(tmp_path / "student"),
        iterations=ITERATIONS, engine__kind="vllm", engine__concurrency=8, environment__max_turns=3,
        rollout__response_tokens=12, update__idle_limit=ITERATIONS, update__learning_rate=1e-2,
    )  # fmt: skip
    killed = start(config, tmp_path / "home")
    deadline = time.monotonic() + PATIENCE_S
    while not stored(root, "rollout"):
        assert killed.poll() is None, killed.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = children_of(killed.pid)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert children
    while any(lives(folder) for folder in children):
        assert time.monotonic() < deadline, f"left over: {children}"
        time.sleep(0.1)
    (first,) = stored(root, "rollout")
    assert first.manifest.counts["engine_starts"] == 1 or stored(root, "evaluate")

    done = train(config, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    rollouts, updates = stored(root, "rollout"), stored(root, "update")
    assert len(rollouts) == len(updates) == ITERATIONS
    later = [one for one in list_artifacts(Store(str(root))) if (one.manifest.iteration or 0) > 0]
    assert sum(one.manifest.counts.get("engine_starts", 0) for one in later) == 0
    for one in rollouts:
        assert 0 <= metrics_of(one)["rollout/parity_largest_nats"] < 0.01
        assert one.manifest.counts["generated_tokens"] > 0
    for one in updates:
        assert metrics_of(one)["update/engine_parity_max_nats"] < 0.01
    assert len({one.manifest.notes["weights"] for one in updates}) == ITERATIONS, "each update moves weights"
