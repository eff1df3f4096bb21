"""What a stage works with: configuration, store, environment, policies. Shared by all stages of a process.

Policies and engines are kept by digest, so that consecutive stages of a run load each checkpoint once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from pivotopd.agent.prompting import Prompter
from pivotopd.artifacts import Artifact, RunLayout, Store
from pivotopd.config import EnvironmentSection, RunConfig
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.environments.registry import open_environment
from pivotopd.ledger import Counts
from pivotopd.models.base import PolicyEngine, Sampling, Scorer
from pivotopd.models.checkpoint import Policy, load_policy
from pivotopd.models.devices import put_on_device
from pivotopd.models.engines import start_vllm, vllm_runs
from pivotopd.models.parity import BOUNDS_NATS, Parity, Probe
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.progress import Progress, silent
from pivotopd.publish import ArtifactWriter
from pivotopd.runs.forks import checkpoints_of
from pivotopd.teacher_section import SelfSection

GAMES = frozenset({"games", "generated", "holdout"}) | EnvironmentSection.RUNNING
"""Keys of the environment section that stand in no digest: it has the fingerprint of the games in place of
their names, and it does not matter how many processes play."""

KEPT_POLICIES = 3
"""Loaded policies kept at once: the current one, the initial one, and one being replaced; a larger teacher
comes on top."""

OTHER = "other"
"""Name of the seconds that lie in no phase."""


@dataclass(frozen=True, slots=True)
class Source:
    """An input: a published artifact, or a model folder outside the store.

    Attributes:
        prefix: Prefix in the store; empty for a folder outside.
        digest: Digest of the work that made it, or of the folder's content.
        folder: The folder outside the store, if it is one.
    """

    prefix: str
    digest: str
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work of one stage, named before it is done.

    Attributes:
        stage: Name of the stage.
        iteration: Training iteration, or None outside the loop.
        prefix: Where its artifact lies.
        digest: Digest of the work.
        code: Digest of the stage's code.
        reads: What the stage reads of the configuration.
        inputs: Role to input.
    """

    stage: str
    iteration: int | None
    prefix: str
    digest: str
    code: str
    reads: Mapping[str, Any]
    inputs: Mapping[str, Source]

    @property
    def output(self) -> Source:
        """This job's artifact as an input of another."""
        return Source(self.prefix, self.digest)


class Closable(Protocol):
    """Something that holds memory or a process."""

    def close(self) -> None:
        """Free it."""
        ...


Kept = TypeVar("Kept", bound=Closable)


def longest_tokens(config: RunConfig) -> int:
    """Return the most tokens of a prompt with its response that any stage asks a policy for."""
    rollout, teacher = config.rollout, config.teacher
    longest = rollout.prompt_tokens + rollout.response_tokens
    if isinstance(teacher, SelfSection):
        longest = max(longest, teacher.prompt_tokens + teacher.reply_tokens)
    return longest


@dataclass
class Work:
    """A process's share of a run.

    Args:
        config: Resolved configuration.
        layout: Where the run lies.
        progress: Tells a person how far a stage is.

    Attributes:
        parity: What the last parity probe of an engine found; None where none was needed.
    """

    config: RunConfig
    layout: RunLayout
    progress: Progress = silent
    _policies: dict[str, Policy] = field(default_factory=dict)
    _scorers: dict[str, TransformersEngine] = field(default_factory=dict)
    _engine: PolicyEngine | None = None
    parity: Parity | None = None
    _kept: dict[str, Closable] = field(default_factory=dict)
    _counted: Counts = field(default_factory=Counts)

    def close(self) -> None:
        """End the engines and free the models; what is asked for afterwards is loaded again."""
        self._end_engine()
        for digest in list(self._policies):
            self._free(digest)
        while self._kept:
            self._kept.popitem()[1].close()
        if "environment" in self.__dict__:
            self.environment.close()

    def keep(self, name: str, load: Callable[[], Kept], *, attached: bool = False) -> Kept:
        """Return an engine kept under a name until the process has done its share; load it at most once.

        Args:
            name: Its name.
            load: Starts it, or attaches to one that runs.
            attached: It was started elsewhere.
        """
        if name not in self._kept:
            self._kept[name] = load()
            if not attached:
                self.count(Counts(model_loads=1, engine_starts=1))
        return cast("Kept", self._kept[name])

    def hold(self, name: str, thing: Closable) -> None:
        """Keep something that changes hands, until it is released or the process has done its share."""
        self._kept[name] = thing

    def held(self, name: str) -> Closable | None:
        """Return what is held under a name."""
        return self._kept.get(name)

    def release(self, name: str) -> None:
        """Hold it no longer; whoever asked closes it."""
        self._kept.pop(name, None)

    @cached_property
    def store(self) -> Store:
        """The store at the run's root."""
        return self.layout.store

    @cached_property
    def environment(self) -> MeteredEnvironment:
        """The environment of the run."""
        return MeteredEnvironment(open_environment(self.config.environment))

    def count(self, counts: Counts) -> None:
        """Add to the ledger what neither an engine nor the environment counts."""
        self._counted += counts

    @property
    def spent(self) -> Counts:
        """What this process used so far."""
        engines = sum((one.counts for one in self._scorers.values()), self._counted)
        if self._engine is not None:
            engines += self._engine.counts
        return engines + self.environment.counts

    @cached_property
    def sampling(self) -> Sampling:
        """How rollouts and recoveries are sampled."""
        rollout = self.config.rollout
        return Sampling(rollout.temperature, rollout.response_tokens)

    def find(self, job: Job) -> Artifact | None:
        """Return a job's artifact if it is published."""
        return self.store.open_artifact(job.prefix, job.digest)

    def made(self, job: Job) -> Artifact | None:
        """Return a job's artifact if all that the job makes is published: an update's checkpoint too.

        A pruned checkpoint is. One that was deleted is made again, with the same weights.
        """
        if job.stage == "update" and self.store.open_artifact(checkpoints_of(job.prefix), job.digest) is None:
            return None
        return self.find(job)

    def input(self, job: Job, role: str) -> Artifact:
        """Return an input artifact of a job; ArtifactError when it does not exist."""
        source = job.inputs[role]
        return self.store.require(source.prefix, source.digest)

    def policy_folder(self, source: Source) -> Path:
        """Return a local folder with a policy's weights and tokenizer."""
        if source.folder is not None:
            return Path(source.folder)
        return self.store.require(source.prefix, source.digest).local_path()

    def policy(self, source: Source) -> Policy:
        """Return a policy, loading it at most once."""
        if source.digest not in self._policies:
            kept = KEPT_POLICIES + (self.config.larger_teacher.path is not None)
            while len(self._policies) >= kept:
                self._free(next(iter(self._policies)))
            self._policies[source.digest] = self.fresh_policy(source)
        return self._policies[source.digest]

    def _free(self, digest: str) -> None:
        """Let go of a policy and what scores with it, whose counts remain."""
        self._policies.pop(digest)
        scorer = self._scorers.pop(digest, None)
        if scorer is not None:
            self.count(scorer.counts)

    def fresh_policy(self, source: Source) -> Policy:
        """Load a policy of which this process keeps no other reference: a learner changes its weights."""
        policy = load_policy(self.policy_folder(source), self.config.update.dtype)
        put_on_device(policy.model)
        self.count(Counts(model_loads=1))
        return policy

    def scorer(self, source: Source) -> Scorer:
        """Return what scores with a policy: the learner's own kind of model, whatever engine generates.

        Log-probabilities that are subtracted from each other come from here, so that both have one numerics.
        """
        return self._model_of(source)

    def _model_of(self, source: Source) -> TransformersEngine:
        policy = self.policy(source)
        if source.digest not in self._scorers:
            self._scorers[source.digest] = TransformersEngine(
                policy,
                token_budget=self.config.update.micro_batch_tokens,
                max_batch=self.config.rollout.batch_episodes,
                digest=source.digest,
            )
        return self._scorers[source.digest]

    def engine(self, source: Source) -> PolicyEngine:
        """Return the one engine that generates, with a policy in it; it is started once a process.

        Another policy is loaded in place: what was returned before has it too.

        Raises:
            ConfigError: The engine cannot run the model.
            EngineFault: It has ended, cannot be reached, or could not take the policy.
            NumericsError: It does not give the learner's log-probabilities after a load.
        """
        policy = self.policy(source)
        if self._engine is not None and self._engine.policy == source.digest:
            return self._engine
        if isinstance(self._engine, TransformersEngine):
            self._engine.serve(policy, source.digest)
            return self._engine
        try:
            engine = self._loaded_engine(source)
        except BaseException:  # a stop signal too: no process is left, no wrong weights are used
            self._end_engine()
            raise
        return engine

    def _loaded_engine(self, source: Source) -> PolicyEngine:
        if self._engine is None:
            self._engine = self._start_engine(source)
            self.count(Counts(engine_starts=0 if self.config.engine.urls else 1))
        else:
            self._engine.reload(self.policy_folder(source), source.digest)
        if not isinstance(self._engine, TransformersEngine):
            before = self.spent
            self.parity = self._probe(source).check(self._engine, self._model_of(source))
            if self.config.engine.kind == "transformers":  # in this process it would need no probe
                self.count(before - self.spent)
        return self._engine

    def _start_engine(self, source: Source) -> PolicyEngine:
        config, update = self.config, self.config.update
        folder = self.policy_folder(source)
        if config.engine.urls:
            from pivotopd.services.attach import attach

            return attach(config.engine, folder, source.digest, dtype=update.dtype)
        if vllm_runs(config.engine, folder):
            return start_vllm(
                config.engine, folder, source.digest, dtype=update.dtype, max_tokens=longest_tokens(config)
            )
        budget, rows = update.micro_batch_tokens, config.rollout.batch_episodes
        return TransformersEngine(self.policy(source), budget, rows, source.digest)

    @property
    def parity_metrics(self) -> dict[str, float]:
        """What the probe of the engine's present policy found; nothing where none was needed."""
        if self.parity is None:
            return {}
        return {
            "rollout/parity_largest_nats": self.parity.largest_nats,
            "rollout/parity_mean_nats": self.parity.mean_nats,
        }

    def _probe(self, source: Source) -> Probe:
        section, dtype = self.config.engine, self.config.update.dtype
        bound = section.parity_bound_nats
        return Probe(
            section.parity_rows,
            len(self.policy(source).tokenizer),
            BOUNDS_NATS[dtype] if bound is None else bound,
            longest_tokens(self.config),
        )

    def _end_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            self.count(engine.counts)
            engine.close()

    def prompter(self, source: Source) -> Prompter:
        """Return what builds prompts for a policy."""
        return Prompter(
            self.environment.wording,
            self.policy(source).codec,
            self.config.environment.history,
            self.config.rollout.prompt_tokens,
            self.config.method.hint_form,
        )

    def begin(self, job: Job) -> ArtifactWriter:
        """Start writing a job's artifact."""
        return self.store.begin(
            job.prefix,
            job.digest,
            stage=job.stage,
            run=self.layout.run,
            iteration=job.iteration,
            code=job.code,
            config=dict(job.reads),
            inputs={role: source.digest for role, source in job.inputs.items()},
        )


class Ledger:
    """What a stage uses from here on: its engines, the environment, what is loaded for it.

    Args:
        work: The process's share of the run.
    """

    def __init__(self, work: Work) -> None:
        self._work, self._before = work, work.spent

    @property
    def spent(self) -> Counts:
        """The difference to the beginning; a teacher's own work is added by who has one."""
        return self._work.spent - self._before


class Stopwatch:
    """Seconds by phase, for a manifest, from here on. A phase does not hold another one."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._done: dict[str, float] = {}
        self._running: tuple[str, float] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        if self._running is not None:
            raise ValueError(f"phase {name} begins inside phase {self._running[0]}")
        self._running = (name, time.perf_counter())
        try:
            yield
        finally:
            self._done, self._running = self._phases(time.perf_counter()), None

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a phase of its own, not to the one that it interrupts."""
        outer = self._running
        now = time.perf_counter()
        self._done, self._running = self._phases(now), (name, now)
        try:
            yield
        finally:
            now = time.perf_counter()
            self._done = self._phases(now)
            self._running = outer and (outer[0], now)

    @property
    def seconds(self) -> dict[str, float]:
        """The phases until now, and as ``other`` what lies in none; together the time since the start."""
        now = time.perf_counter()
        phases = self._phases(now)
        return {**phases, OTHER: max(0.0, now - self._start - sum(phases.values()))}

    def _phases(self, now: float) -> dict[str, float]:
        found = dict(self._done)
        if self._running is not None:
            name, since = self._running
            found[name] = found.get(name, 0.0) + now - since
        return found
