"""What stages say that they used, against engines and environments that count by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Artifact
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.base import StepResult, Task
from pivotopd.learner import Learner
from pivotopd.ledger import FIELDS, Counts
from pivotopd.models.base import Completion, PolicyEngine, Request, ScoreRequest
from pivotopd.models.decoding import Decoding
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.records import Turn
from stages import work as work_module
from stages.runs import open_run
from stages.work import Source, Work
from tests.small_student import small_config
from tests.stages.conftest import StoredRun

STAGES = ("rollout", "label", "recover", "update")


@contextmanager
def counting(log: Counter[str]) -> Iterator[None]:
    """Write down what is done with engines, environments and models, where it is done."""
    with pytest.MonkeyPatch.context() as patch:
        _count_environment(log, patch)
        _count_engine(log, patch)
        load, start = work_module.load_policy, Learner.__init__

        def load_policy(*arguments: Any) -> Any:
            log["model_loads"] += 1
            return load(*arguments)

        def started(self: Learner, *arguments: Any, **named: Any) -> None:
            log["learner_starts"] += 1
            start(self, *arguments, **named)

        patch.setattr(work_module, "load_policy", load_policy)
        patch.setattr(Learner, "__init__", started)
        yield


def _count_environment(log: Counter[str], patch: pytest.MonkeyPatch) -> None:
    reset, step, load = NativeEnv.reset, NativeEnv.step, NativeEnv.load

    def resets(self: NativeEnv, task: Task, seed: int) -> StepResult:
        log["env_resets"] += 1
        return reset(self, task, seed)

    def steps(self: NativeEnv, action: str) -> StepResult:
        log["env_steps"] += 1
        return step(self, action)

    def loads(self: NativeEnv, task: Task, state: bytes) -> StepResult:
        log["restores"] += 1
        return load(self, task, state)

    for name, made in (("reset", resets), ("step", steps), ("load", loads)):
        patch.setattr(NativeEnv, name, made)


def _count_engine(log: Counter[str], patch: pytest.MonkeyPatch) -> None:
    send, land, score = Decoding.send, Decoding.land, TransformersEngine.score

    begun = Work._start_engine

    def starts(self: Work, source: Source) -> PolicyEngine:
        log["engine_starts"] += 1
        return begun(self, source)

    def sends(self: Decoding, requests: Mapping[int, Request]) -> None:
        prompts = [tuple(one.prompt_ids) for one in requests.values()]
        log["rounds"] += bool(prompts)
        log["prompts"] += len(prompts)
        log["prompt_tokens"] += sum(map(len, prompts))
        log["cached_prompt_tokens"] += sum(map(len, prompts)) - sum(map(len, set(prompts)))
        send(self, requests)

    def lands(self: Decoding) -> dict[int, Completion]:
        found = land(self)
        log["generated_tokens"] += sum(len(one.response_ids) for one in found.values())
        return found

    def scores(self: TransformersEngine, requests: Sequence[ScoreRequest]) -> Any:
        log["scored_rows"] += len(requests)
        log["scored_context_tokens"] += sum(len(one.prompt_ids) for one in requests)
        log["scored_tokens"] += sum(len(one.response_ids) for one in requests)
        log["repeated_rows"] += len(requests)
        log["repeated_rows"] -= len({(tuple(one.prompt_ids), tuple(one.response_ids)) for one in requests})
        return score(self, requests)

    patch.setattr(Decoding, "send", sends)
    patch.setattr(Decoding, "land", lands)
    patch.setattr(TransformersEngine, "score", scores)
    patch.setattr(Work, "_start_engine", starts)


def spent(artifact: Artifact) -> Counts:
    return Counts.of(artifact.manifest.counts)


@pytest.fixture(scope="module")
def logged(student: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredRun, Counter[str]]:
    """One iteration with deep recoveries, and what was written down beside it."""
    run = StoredRun(tmp_path_factory.mktemp("ledger") / "root")
    open_run(small_config(run.root, student, recovery__depth=2))
    log: Counter[str] = Counter()
    with counting(log):
        run.run("rollout", 0, follow=True)
        run.run("evaluate", 0)
        run.run("evaluate", 1)
    return run, log


def test_the_manifests_say_exactly_what_was_done(logged: tuple[StoredRun, Counter[str]]) -> None:
    run, log = logged
    made = [run.artifact(stage, 0) for stage in STAGES]
    made += [run.artifact("evaluate", 0), run.artifact("evaluate", 1)]
    total = sum((spent(one) for one in made), Counts()).listed()
    assert {name: total[name] for name in log} == dict(log)
    assert log.keys() >= {"env_steps", "restores", "scored_rows", "learner_starts", "model_loads", "rounds"}
    assert total["teacher_calls"] == total["worker_restarts"] == 0, "an oracle, and no processes"
    assert 0 < total["repeated_rows"] < total["scored_rows"]


def test_each_stage_pays_for_its_own(logged: tuple[StoredRun, Counter[str]]) -> None:
    run, _ = logged
    rollout, label, recover, update = (spent(run.artifact(stage, 0)) for stage in STAGES)
    assert (rollout.model_loads, rollout.engine_starts) == (1, 1)
    assert label.prompts == label.env_resets == label.model_loads == 0
    assert recover.restores > 0
    assert recover.engine_starts == 0, "the engine is still there"
    assert (update.learner_starts, update.model_loads, update.engine_starts) == (1, 1, 0)
    checkpoint, stored = run.checkpoint(0), run.artifact("update", 0).manifest
    own = sum(one.bytes for one in (*stored.parts, *stored.files))
    assert update.bytes_written == own + sum(one.bytes for one in checkpoint.manifest.files)
    assert checkpoint.manifest.counts == {}
    for stage in STAGES:
        manifest = run.artifact(stage, 0).manifest
        assert {"write", "other"} <= manifest.seconds.keys()
        assert all(value >= 0 for value in manifest.seconds.values())


def test_training_is_counted_by_rows_that_train(logged: tuple[StoredRun, Counter[str]]) -> None:
    run, _ = logged
    update = spent(run.artifact("update", 0))
    rows = [row for stage in ("rollout", "recover") for row in run.artifact(stage, 0).rows(Turn)]
    rows = [row for row in rows if row.finish_reason != "length"]
    assert update.training_input_tokens == sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    assert update.trained_tokens == sum(len(row.response_ids) for row in rows)


@pytest.mark.parametrize("batch", [1, 2])
def test_batches_change_padding_and_nothing_else(
    logged: tuple[StoredRun, Counter[str]], student: Path, tmp_path: Path, batch: int
) -> None:
    run, _ = logged
    other = StoredRun(tmp_path / "root")
    open_run(small_config(other.root, student, recovery__depth=2, rollout__batch_episodes=batch))
    other.run("rollout", 0, follow=True)
    for stage in STAGES:
        one, two = run.artifact(stage, 0), other.artifact(stage, 0)
        fixed = {
            name: value for name, value in one.manifest.counts.items() if name not in one.manifest.varying
        }
        assert one.digest == two.digest
        assert {name: two.manifest.counts[name] for name in fixed} == fixed
    rounds = spent(run.artifact("rollout", 0)).rounds
    assert spent(other.artifact("rollout", 0)).rounds > rounds
    if batch == 1:
        assert spent(other.artifact("rollout", 0)).padded_tokens == 0
        assert spent(other.artifact("rollout", 0)).idle_tokens == 0
    # log-probabilities differ in their last bits; what was sampled is the same
    sampled, again = run.artifact("rollout", 0).rows(Turn), other.artifact("rollout", 0).rows(Turn)
    assert [turn.response_ids for turn in sampled] == [turn.response_ids for turn in again]


def test_what_varies_is_what_the_ledger_says(logged: tuple[StoredRun, Counter[str]]) -> None:
    run, _ = logged
    for stage in STAGES:
        manifest = run.artifact(stage, 0).manifest
        assert set(manifest.varying) == {
            name for name in manifest.counts if name in FIELDS and FIELDS[name].varies
        }
