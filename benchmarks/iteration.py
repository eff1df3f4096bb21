"""One training iteration through the stages, in this process and without Prefect, as the benchmarks time it.

A student that was warm-started once is kept under ``.cache/benchmarks``. The iteration is one like all but a
run's first: the policy differs from the reference of the KL term, which scores every row too. The teacher is
the oracle behind a wrapper that adds an artificial latency and, where asked for, the environment's own
lessons. The stock engine, which can neither be copied nor dumped, plays with the native one beside it: that
gives the oracle its states.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal
from unittest.mock import patch

import torch

from benchmarks.ratios import Cost, cpu_seconds
from pivotopd.artifacts import Artifact
from pivotopd.collector import Standing
from pivotopd.config import RunConfig
from pivotopd.environments.alfworld.mirrored import MirroredStockEnv
from pivotopd.environments.base import Env, Environment, StepResult
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.environments.registry import open_environment
from pivotopd.errors import ReplayDivergence
from pivotopd.ledger import Counts
from pivotopd.models.checkpoint import load_policy, save_policy, weights_digest
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Query, Reading, Teacher, Transcript
from pivotopd.teacher.registry import make_teacher
from stages import stream, teaching
from stages.learners import learner_at
from stages.plan import Plan
from stages.runner import Streamer, perform, streamed
from stages.runs import open_run
from stages.work import Source, Work

CACHE = Path(".cache/benchmarks")
Streaming = Literal["none", "exact", "joined"]
RESPONSE_TOKENS = 48
"""Longest response of the plain student, whose responses are about 12 tokens long."""
STUDENT: Mapping[str, Any] = {
    "iterations": 1,
    "environment": {
        "prompt": "compact",
        "max_turns": 30,
        "history": 3,
        "generated": {"train": 16, "valid": 4},
    },
    "student": {"kind": "tiny"},
    "warm_start": {"games": 300, "steps": 700, "check_games": 8},
    "rollout": {"tasks": 4, "group_size": 4, "prompt_tokens": 1024, "response_tokens": RESPONSE_TOKENS},
    "recovery": {"depth": 1, "limit": 8},
    "update": {"learning_rate": 1e-4, "mini_batch_rows": 128, "micro_batch_tokens": 2048, "idle_limit": 9},
    "evaluation": {"every": 0, "tasks": 1, "recovery_mistakes": 0},
    "tracking": {"enabled": False},
}
"""The student of the iterations: the demo's, thirty turns as in the paper, prompts in the short form."""
MOVED_SHARE = 0.01
"""By how much the reference's weights differ from the student's, in their standard deviation."""


def student_folder(
    root: Path = CACHE, *, response_tokens: int = RESPONSE_TOKENS, **warm_start: object
) -> Path:
    """Return the folder of the warm-started student, making it where it is not there.

    Args:
        root: Where it is kept.
        response_tokens: Its longest response.
        **warm_start: Keys of the section ``warm_start`` that differ.
    """
    data = {**STUDENT, "name": "student", "root": str(root)}
    data["warm_start"] = {**STUDENT["warm_start"], **warm_start}
    data["rollout"] = {**STUDENT["rollout"], "response_tokens": response_tokens}
    work, plan = open_run(RunConfig.model_validate(data))
    with closing(work):
        return perform(work, plan.warm_start()).artifact.local_path().resolve()


def moved(student: Path, folder: Path) -> Path:
    """Write a student whose weights have moved a little, as those of a run have after its updates.

    Args:
        student: Folder of the student.
        folder: Where to write the other one.
    """
    policy = load_policy(student)
    draws = torch.Generator().manual_seed(seed_of("benchmark reference"))
    with torch.no_grad():
        for weights in policy.model.parameters():
            noise = torch.randn(weights.shape, generator=draws)
            weights.add_(noise, alpha=MOVED_SHARE * float(weights.std(correction=0)))
    save_policy(policy, folder)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an iteration is like.

    Attributes:
        method: ``grpo`` or ``pivotopd``.
        depth: K.
        tasks: Tasks played.
        group_size: Episodes a task.
        max_turns: Turn limit.
        chains: Most recovery chains; this is the cap, which binds where there are more pivots.
        latency_s: Seconds that every round of the teacher takes; its requests are answered together.
        lessons: Score the environment's lesson at every turn.
        stock: The stock engine, and replay.
        replay: Reach states by replay.
        streaming: How groups stream through the stages.
        response_tokens: Longest response.
        engine: What generates.
    """

    method: str = "pivotopd"
    depth: int = 1
    tasks: int = 4
    group_size: int = 4
    max_turns: int = 30
    chains: int = 8
    latency_s: float = 0.0
    lessons: bool = False
    stock: bool = False
    replay: bool = False
    streaming: Streaming = "none"
    response_tokens: int = RESPONSE_TOKENS
    engine: Literal["transformers", "vllm"] = "transformers"

    @property
    def episodes(self) -> int:
        """Episodes of an iteration."""
        return self.tasks * self.group_size


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration took and made.

    Attributes:
        cost: Wall and CPU seconds of all stages, for one unit.
        counts: The stages' ledgers, added.
        own: The stages' own counts, by ``stage/name``.
        seconds: Seconds by ``stage/phase``.
        content: Content digest of each stage.
    """

    cost: Cost
    counts: Counts
    own: Mapping[str, int]
    seconds: Mapping[str, float]
    content: Mapping[str, str]

    def __add__(self, other: Outcome) -> Outcome:
        seconds = {key: value + other.seconds.get(key, 0.0) for key, value in self.seconds.items()}
        return replace(self, cost=self.cost + other.cost, seconds=seconds)

    def seconds_of(self, *parts: str) -> float:
        """Return the wall seconds of phases whose ``stage/phase`` begins with any of some texts."""
        return sum(value for name, value in self.seconds.items() if name.startswith(parts))


@dataclass
class SlowTeacher:
    """Another teacher that takes its time.

    Args:
        inner: The teacher.
        latency_s: Seconds of a round: all requests of a call are in flight together.
        lessons: Give each episode the environment's own lesson.
    """

    inner: Teacher
    latency_s: float
    lessons: bool
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Take the other one's name."""
        self.name = self.inner.name

    @property
    def spent(self) -> Counts:
        """What it used."""
        return self.inner.spent

    @property
    def counts(self) -> dict[str, int]:
        """What became of its work."""
        return self.inner.counts

    def read(self, transcripts: Sequence[Transcript], sample: int = 0) -> list[Reading]:
        """Read episodes in one round."""
        time.sleep(self.latency_s if transcripts else 0.0)
        readings = self.inner.read(transcripts, sample)
        if not self.lessons:
            return readings
        lessons = self.inner.distil(transcripts)
        return [replace(one, lesson=lesson) for one, lesson in zip(readings, lessons, strict=True)]

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        """Analyse episodes in one round."""
        time.sleep(self.latency_s if transcripts else 0.0)
        return self.inner.analyse(transcripts)

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        """Name actions in one round."""
        time.sleep(self.latency_s if queries else 0.0)
        return self.inner.next_actions(queries)

    def distil(self, transcripts: Sequence[Transcript]) -> list[str | None]:
        """Distil episodes."""
        return self.inner.distil(transcripts)


class StockBeside:
    """An environment whose instances play in the stock engine, with the native one beside it.

    Args:
        inner: The native environment.
    """

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.spec = replace(inner.spec, version=f"{inner.spec.version} stock", fork="replay")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self) -> Env:
        """Return a fresh instance."""
        return _Mirrored("move", memoise=False)


class _Mirrored(MirroredStockEnv):
    """The stock engine's packages as they are; where it differs, the measurement ends and not the episode."""

    def _agreed(self, stock: StepResult, native: StepResult) -> StepResult:
        try:
            return super()._agreed(stock, native)
        except ReplayDivergence as error:
            raise SystemExit(f"nothing was measured: {error.what}") from error


@dataclass
class Later(Plan):
    """The plan of an iteration whose policy is no longer the run's start.

    Args:
        reference: Folder of the start policy; the policy is the configured student.
    """

    reference: Path = field(kw_only=True)

    def start(self) -> Source:
        """Return the reference."""
        return replace(self.pretrained, digest=weights_digest(self.reference), folder=str(self.reference))

    def policy(self, iteration: int) -> Source:  # noqa: ARG002 - there is one iteration
        """Return the student."""
        return self.pretrained


@dataclass
class Bench:
    """Runs iterations of one student, each in a fresh root, with engine and learner started beforehand.

    Args:
        student: Folder of the student.
    """

    student: Path

    @cached_property
    def roots(self) -> Path:
        """Folder of the roots; each is removed after its iteration."""
        return Path(mkdtemp(prefix="pivotopd-bench-"))

    @cached_property
    def reference(self) -> Path:
        """Folder of the reference."""
        return moved(self.student, self.roots / "reference")

    def close(self) -> None:
        """Remove what is left."""
        shutil.rmtree(self.roots, ignore_errors=True)

    def config(self, shape: Shape, root: Path) -> RunConfig:
        """Return the configuration of an iteration."""
        data: dict[str, Any] = {key: value for key, value in STUDENT.items() if key != "warm_start"}
        data |= {
            "name": "bench",
            "root": str(root),
            "student": {"kind": "pretrained", "path": str(self.student)},
        }
        data["streaming"] = shape.streaming
        data["environment"] = {**data["environment"], "max_turns": shape.max_turns}
        data["rollout"] = {
            **data["rollout"],
            "tasks": shape.tasks,
            "group_size": shape.group_size,
            "response_tokens": shape.response_tokens,
        }
        data["engine"] = {"kind": shape.engine}
        reach = "replay" if shape.replay or shape.stock else "snapshot"
        data["recovery"] = {"depth": shape.depth, "limit": shape.chains, "reach": reach}
        data["method"] = {"name": shape.method}
        if shape.method == "pivotopd":
            data["method"]["lesson_weight"] = 0.001 if shape.lessons else 0.0
        return RunConfig.model_validate(data)

    @contextmanager
    def prepared(self, shape: Shape) -> Iterator[tuple[Work, Plan]]:
        """Yield the work and plan of one iteration: with a fresh root; engine and learner are running."""
        root = Path(mkdtemp(dir=self.roots))
        native = open_environment(self.config(shape, root).environment)

        def slow(config: RunConfig, _: Environment, speaker: Any = None) -> Teacher:
            return SlowTeacher(make_teacher(config, native, speaker), shape.latency_s, shape.lessons)

        try:
            work, plan = open_run(self.config(shape, root))
            plan = Later(plan.config, plan.layout, reference=self.reference)
            if shape.stock:
                work.environment = MeteredEnvironment(StockBeside(native))
            far = patch.object(stream, "waits_for", lambda _: shape.latency_s > 0)
            with (
                closing(Standing()) as standing,
                closing(work),
                patch.object(teaching, "make_teacher", slow),
                far,
            ):
                policy, start = plan.policy(0), plan.start()
                work.engine(policy)
                work.scorer(start)
                with learner_at(work, policy, start, policy.digest):
                    pass  # in a run it is held since the iteration before
                work.environment.tasks(work.config.environment.train_split)
                _ = [plan.job(stage, 0) for stage in plan.stages()]
                standing.settle()  # as a run does after its first update
                yield work, plan
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def run(self, shape: Shape) -> Outcome:
        """Run one iteration."""
        with self.prepared(shape) as (work, plan):
            wall, cpu = time.perf_counter(), cpu_seconds()
            artifacts = self._stages(work, plan)
            cost = Cost(1, time.perf_counter() - wall, cpu_seconds() - cpu)
            return _outcome(cost, artifacts)

    def _stages(self, work: Work, plan: Plan) -> dict[str, Artifact]:
        with closing(Streamer(partial(streamed, plan))) as streamer:
            return {stage: streamer.perform(work, plan.job(stage, 0)).artifact for stage in plan.stages()}


def _outcome(cost: Cost, artifacts: Mapping[str, Artifact]) -> Outcome:
    manifests = {stage: artifact.manifest for stage, artifact in artifacts.items()}
    ledger = set(Counts().listed())
    return Outcome(
        cost,
        sum((Counts.of(one.counts) for one in manifests.values()), Counts()),
        {
            f"{stage}/{name}": value
            for stage, one in manifests.items()
            for name, value in one.counts.items()
            if name not in ledger
        },
        {f"{stage}/{name}": value for stage, one in manifests.items() for name, value in one.seconds.items()},
        {stage: one.content_digest for stage, one in manifests.items()},
    )
