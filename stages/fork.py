"""Begin a new run with the artifacts of an old one, up to an iteration."""

from __future__ import annotations

import importlib

from pivotopd.artifacts import Artifact, RunLayout, Store
from pivotopd.config import RunConfig
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.runs.forks import Fork, Shared
from stages.plan import Plan
from stages.work import Job, Source, Work


def plan_fork(work: Work, plan: Plan, config: RunConfig, first: int | None) -> Fork:
    """Return what a new run takes over of an old one; nothing is written.

    Args:
        work: The old run.
        plan: Its plan.
        config: The new run's configuration, with its name.
        first: First iteration of its own; None takes over all complete ones.

    Raises:
        ArtifactError: The old run has not got that far, or was made by other code.
        ConfigError: The new run starts from another student.
    """
    done = 0
    while done < plan.config.iterations and work.find(plan.job("update", done)) is not None:
        done += 1
    at = done if first is None else first
    if at > done:
        raise ArtifactError(
            f"the run has {done} complete iterations of this version's code and its own settings, not {at}",
            where=work.layout.uri,
            mend="train it further, or give a smaller --from",
        )
    new = Plan(config, RunLayout(work.layout.root, config.name or ""))
    if at and new.start().digest != plan.start().digest:
        raise ConfigError(
            "the fork would start from another student than the iterations it shares",
            where="student",
            mend="leave student and warm_start as they are, or fork with --from 0",
        )
    wanted = [] if plan.start().folder else [plan.warm_start()]
    wanted += [plan.skills()] if at and plan.with_skills and new.with_skills else []
    for iteration in range(at):
        wanted += [plan.job(stage, iteration) for stage in plan.stages()]
    wanted = wanted if at else []
    found = [artifact for job in wanted if (artifact := work.find(job)) is not None]
    if len(found) < len(wanted):
        raise ArtifactError(
            "an artifact of the shared iterations is missing",
            where=work.layout.uri,
            mend="resume the run first",
        )
    found += _evaluations(work, plan, new, at)
    shared = tuple(
        Shared(
            stage=one.manifest.stage,
            iteration=one.manifest.iteration,
            prefix=one.path.rpartition("/")[0],
            digest=one.digest,
        )
        for one in found
    )
    return Fork(run=work.layout.run, iteration=at, shared=shared)


def _evaluations(work: Work, plan: Plan, new: Plan, at: int) -> list[Artifact]:
    """Return the evaluations that the new run would do alike, of policies that it shares."""
    reads = importlib.import_module("stages.evaluate").reads
    same = _nameless(reads(plan.config)) == _nameless(reads(new.config))
    alike = new.start() == plan.start() and new.data(_valid(new)) == plan.data(_valid(plan))
    if not same or not alike:
        return []
    jobs = [plan.evaluate(iteration) for iteration in range(at + 1)]
    return [artifact for job in jobs if (artifact := work.find(job)) is not None]


def _valid(plan: Plan) -> str:
    return plan.config.environment.valid_split


def _nameless(reads: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in reads.items() if key != "run"}


def jobs_shared(store: Store, fork: Fork) -> dict[tuple[str, int | None], Job]:
    """Return the jobs of a fork's shared artifacts, as their manifests tell of them.

    Raises:
        ArtifactError: One of them does not exist.
    """
    return {
        (one.stage, one.iteration): _job(one, store.require(one.prefix, one.digest)) for one in fork.shared
    }


def _job(shared: Shared, artifact: Artifact) -> Job:
    made = artifact.manifest
    inputs = {role: Source("", digest) for role, digest in made.inputs.items()}
    return Job(made.stage, made.iteration, shared.prefix, made.digest, made.code, made.config, inputs)
