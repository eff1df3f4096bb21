"""A training whose responses vLLM writes: one engine for all of it, in step with the learner, no orphan.

One run is disturbed three times and started again with the same command each time. Each test names the step
it looks at, and the steps before are made where they are not yet.
"""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import RunConfig, TinyStudent
from pivotopd.environments.alfworld.wording import phrases
from pivotopd.models.checkpoint import make_policy, save_policy
from pivotopd.models.tiny import build_model, build_tokenizer
from stages.metrics import metrics_of
from tests.child_process import engines_of, lives, patience, wait_until
from tests.flows.runs import PATIENCE_S, finish, processes_of, start
from tests.small_student import small_config

pytestmark = pytest.mark.slow(seconds=50)
ITERATIONS = 3
GONE_S = 120
"""An engine that is still being imported looks for its run only afterwards."""


@dataclass(frozen=True)
class Step:
    """How one process of the run ended.

    Attributes:
        done: Its exit code and what it said.
        left: Its engine's processes, all of which must have ended.
        before: Addresses of what was published before it ran.
        after: Artifacts by address when it had ended.
    """

    done: subprocess.CompletedProcess[str]
    left: list[int]
    before: frozenset[str]
    after: dict[str, Artifact]

    def stored(self, stage: str) -> list[Artifact]:
        found = [one for one in self.after.values() if one.manifest.stage == stage]
        return sorted(found, key=lambda one: one.manifest.iteration or 0)


@dataclass(frozen=True)
class Disturbed:
    """A run, and where its processes keep what they need.

    Attributes:
        config: Its configuration.
        home: Folder of its Prefect home.
    """

    config: RunConfig
    home: Path

    @property
    def published(self) -> dict[str, Artifact]:
        """Return what is published, all of which can be read."""
        return {one.path: one for one in list_artifacts(Store(str(self.config.root)))}

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """Start the command; nothing of it is left at the end, and no wait is for ever."""
        process = start(self.config, self.home)
        try:
            with patience(PATIENCE_S):
                yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def ended(self, process: subprocess.Popen[str], before: frozenset[str], engines: list[int]) -> Step:
        """Wait for the command's end and for that of its engine."""
        done = finish(process)
        wait_until(lambda: not any(map(lives, engines)), GONE_S, f"left over: {engines}")
        return Step(done, engines, before, self.published)


def wait_for_line(process: subprocess.Popen[str], beginning: str) -> None:
    """Wait for a line of what a run says."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(beginning):
            return
    raise AssertionError(f"the run ended before it said {beginning!r}: {said} {process.communicate()[1]}")


def need_vllm() -> None:
    """Skip, or fail if it is required, where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("PIVOTOPD_REQUIRE_VLLM") == "1":
            pytest.fail("PIVOTOPD_REQUIRE_VLLM=1, and vLLM is not installed")
        pytest.skip("vLLM is not installed (PIVOTOPD_REQUIRE_VLLM=1 makes this a failure)")


def untrained(folder: Path) -> Path:
    """Return a student with heads of 32 dimensions, the fewest that vLLM knows.

    What it says is noise, but it ends after a few tokens: a response that is cut does not train. To that
    end one channel is alike in all tokens, and the token that ends a response weighs it more.
    """
    tokenizer = build_tokenizer(phrases())
    shape = TinyStudent(layers=2, hidden=64, heads=2, kv_heads=1, intermediate=64)
    policy = make_policy(build_model(shape, tokenizer, 0), tokenizer)
    embedding = policy.model.get_input_embeddings().weight
    with torch.no_grad():
        embedding[:, 0] = 0.2
        embedding[list(policy.stop_ids[:1]), 0] += math.log(len(tokenizer)) / math.sqrt(64)
    save_policy(policy, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    need_vllm()
    folder = tmp_path_factory.mktemp("vllm-run")
    config = small_config(
        folder / "root", untrained(folder / "student"),
        iterations=ITERATIONS, engine__kind="vllm", engine__concurrency=8, environment__max_turns=3,
        rollout__response_tokens=12, update__idle_limit=ITERATIONS, update__learning_rate=1e-2,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        yield Disturbed(config, folder / "home")


@pytest.fixture(scope="module")
def engine_killed(run: Disturbed) -> Step:
    """The engine is killed in the second rollout: stopped while the update, which needs none, still works."""
    with run.started() as process:
        wait_for_line(process, "rollout 0000")
        engines = engines_of(process.pid)
        assert engines, "an engine serves the run"
        wait_for_line(process, "recover 0000")
        os.kill(engines[0], signal.SIGSTOP)
        wait_for_line(process, "update 0000")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)  # it waits for the engine by now, or will find it dead
        os.kill(engines[0], signal.SIGKILL)
        return run.ended(process, frozenset(), engines)


@pytest.fixture(scope="module")
def asked_to_stop(run: Disturbed, engine_killed: Step) -> Step:
    """The same command goes on with a new engine, and is asked to stop after the rollout."""
    with run.started() as process:
        wait_for_line(process, "rollout 0001")
        engines = engines_of(process.pid)
        process.send_signal(signal.SIGTERM)
        return run.ended(process, frozenset(engine_killed.after), engines)


@pytest.fixture(scope="module")
def killed(run: Disturbed, asked_to_stop: Step) -> Step:
    """The same command again is killed while its engine starts."""
    with run.started() as process:
        wait_until(lambda: engines_of(process.pid) or process.poll() is not None, PATIENCE_S)
        engines = engines_of(process.pid)
        process.kill()
        return run.ended(process, frozenset(asked_to_stop.after), engines)


def test_a_dead_engine_ends_the_run_with_code_10_and_nothing_half_written(
    run: Disturbed, engine_killed: Step
) -> None:
    done = engine_killed.done
    assert len(engine_killed.left) > 1, "on a CPU the model is in a process of its own"
    assert done.returncode == 10, done.stderr
    assert "vLLM's process ended while it worked" in done.stderr
    assert "start the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    (first,) = engine_killed.stored("rollout")
    assert first.manifest.iteration == 0, "the second rollout is not there, not even in part"
    assert len(engine_killed.stored("update")) == 1
    assert not list(Path(run.config.root).rglob(".attempt-*"))


def test_a_stop_signal_ends_run_and_engine(run: Disturbed, asked_to_stop: Step) -> None:
    done = asked_to_stop.done
    assert len(asked_to_stop.left) > 1, "the engine lived when the signal came"
    assert done.returncode == 75, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "  mend:  start the same command again: what is finished is kept"
    assert [one.manifest.iteration for one in asked_to_stop.stored("rollout")] == [0, 1]
    assert asked_to_stop.before < set(asked_to_stop.after)


def test_a_run_killed_while_its_engine_starts_leaves_none(run: Disturbed, killed: Step) -> None:
    assert killed.left
    assert killed.done.returncode == -signal.SIGKILL
    wait_until(lambda: not processes_of(run.home), GONE_S, "processes of the run are left")
    assert killed.before <= set(killed.after)


def test_the_same_command_goes_on_with_one_engine_in_step_with_the_learner(
    run: Disturbed, engine_killed: Step, killed: Step
) -> None:
    with run.started() as process:
        done = finish(process)
    assert done.returncode == 0, done.stderr
    last = Step(done, [], frozenset(killed.after), run.published)
    for path, one in engine_killed.after.items():
        assert last.after[path].manifest.created_at == one.manifest.created_at, "finished work is kept"
    rollouts, updates = last.stored("rollout"), last.stored("update")
    assert len(rollouts) == len(updates) == ITERATIONS
    made = [one for path, one in last.after.items() if path not in last.before]
    assert "update" in {one.manifest.stage for one in made}, "something was left to do"
    assert sum(one.manifest.counts.get("engine_starts", 0) for one in made) == 1
    for one in rollouts:
        assert 0 <= metrics_of(one)["rollout/parity_largest_nats"] < 0.01
        assert one.manifest.counts["generated_tokens"] > 0
    for one in updates:
        assert metrics_of(one)["update/engine_parity_max_nats"] < 0.01
    assert len({one.manifest.notes["weights"] for one in updates}) == ITERATIONS, "each update moves weights"
    wait_until(lambda: not processes_of(run.home), GONE_S, "processes of the run are left")
