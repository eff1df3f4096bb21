"""Run a job: take its published artifact, or do the work."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pivotopd.artifacts import Artifact
from stages.plan import Plan
from stages.work import Job, Work

if TYPE_CHECKING:
    from stages.stream import Stream


@dataclass(frozen=True, slots=True)
class Done:
    """A job's artifact, and whether it was there already."""

    job: Job
    artifact: Artifact
    cached: bool


@dataclass
class Streamer:
    """Does a run's jobs; an iteration's rollout, labels and recoveries at once where that is asked for.

    Each job is still asked for in its order and returns its own artifact. Anything else than the jobs that
    follow ends a stream; what it had not published is done again, stage by stage.

    Args:
        following: Returns the jobs by stage that may begin while a rollout plays, and the update, parts of
            which may be done while a teacher is waited for.
    """

    following: Callable[[Job], Mapping[str, Job]]
    _stream: Stream | None = None

    def perform(self, work: Work, job: Job) -> Done:
        """Return a job's artifact, as :func:`perform` does."""
        found = work.made(job)
        if found is not None:
            return Done(job, found, cached=True)
        if job.stage == "rollout":
            jobs = self.following(job)
            if "label" in jobs and not any(work.made(one) for one in jobs.values()):
                from stages.stream import Stream

                self.close()
                self._stream = Stream(work, {"rollout": job, **jobs})
        if self._stream is None or self._stream.jobs.get(job.stage) != job:
            self.close()
            return perform(work, job)
        try:
            artifact: Artifact = getattr(self._stream, job.stage)()
        except BaseException:
            self.close()
            raise
        return Done(job, artifact, cached=False)

    def close(self) -> None:
        """End a stream."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def perform(work: Work, job: Job) -> Done:
    """Return a job's artifact, doing the work only where it is not published yet."""
    found = work.made(job)
    if found is not None:
        return Done(job, found, cached=True)
    return Done(job, importlib.import_module(f"stages.{job.stage}").run(work, job), cached=False)


def check_inputs(work: Work, jobs: Sequence[Job]) -> None:
    """Refuse jobs that read what nobody has published, before the first of them does any work.

    Args:
        work: The process's share of the run.
        jobs: What is to be done, in order; a job may read what an earlier one makes.

    Raises:
        ArtifactError: An input does not exist, or its manifest is damaged.
    """
    ahead: set[str] = set()
    for job in jobs:
        if work.made(job) is None:
            for source in job.inputs.values():
                if source.prefix and source.folder is None and source.digest not in ahead:
                    work.store.require(source.prefix, source.digest)
        ahead.add(job.digest)


def streamed(plan: Plan, job: Job) -> dict[str, Job]:
    """Return the jobs by stage that follow a rollout and may begin before it: none where nothing streams."""
    from stages.stream import can_stream

    if job.iteration is None or not can_stream(plan.config):
        return {}
    return {stage: plan.job(stage, job.iteration) for stage in plan.stages() if stage != "rollout"}


def planned(work: Work, job: Job, width: int = 18) -> str:
    """Return the line of a dry run: a job, whether it is published, and its address."""
    state = "cached" if work.made(job) else "would run"
    return f"{describe(job):{width}} {state:10} {work.store.join(f'{job.prefix}/{job.digest}')}"


def describe(job: Job) -> str:
    """Return a job's name for people."""
    return job.stage if job.iteration is None else f"{job.stage} {job.iteration:04d}"
