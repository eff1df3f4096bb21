"""Run a job: take its published artifact, or do the work."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from pivotopd.artifacts import Artifact
from stages.work import Job, Work


@dataclass(frozen=True, slots=True)
class Done:
    """A job's artifact, and whether it was there already."""

    job: Job
    artifact: Artifact
    cached: bool


def perform(work: Work, job: Job) -> Done:
    """Return a job's artifact, doing the work only where it is not published yet."""
    found = work.find(job)
    if found is not None:
        return Done(job, found, cached=True)
    return Done(job, importlib.import_module(f"stages.{job.stage}").run(work, job), cached=False)


def describe(job: Job) -> str:
    """Return a job's name for people."""
    return job.stage if job.iteration is None else f"{job.stage} {job.iteration:04d}"
