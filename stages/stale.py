"""What a rerun leaves behind: artifacts made from what it has replaced, and work that must be done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pivotopd.artifacts import Artifact, RunLayout, list_artifacts
from pivotopd.manifest import canonical_json
from stages.work import Job, Work

_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Redone:
    """A job whose work is done already in another form.

    Attributes:
        job: What would be done.
        old: The newest artifact of the same stage and iteration.
        why: What differs: settings, code, inputs.
    """

    job: Job
    old: Artifact
    why: tuple[str, ...]


def stale_after(layout: RunLayout, jobs: Sequence[Job]) -> list[Artifact]:
    """Return the artifacts that still rest on what jobs have replaced, in the order of their making.

    An artifact is *replaced* where another one of the same stage and iteration is among the jobs'. What was
    made from a replaced one, through any number of steps, is stale.

    Args:
        layout: The run.
        jobs: What was run again.

    Raises:
        ArtifactError: A manifest is damaged.
        StorageError: The store cannot be read.
    """
    new = {(job.stage, job.iteration): job.digest for job in jobs}
    artifacts = sorted(list_artifacts(layout.store, layout.run), key=lambda one: one.manifest.created_at)
    replaced = [one for one in artifacts if new.get(_place(one), one.digest) != one.digest]
    resting = {one.digest for one in replaced}
    for one in artifacts:  # inputs are always older than what is made from them
        if resting & set(one.manifest.inputs.values()):
            resting.add(one.digest)
    made = {*new.values(), *(one.digest for one in replaced)}
    return [
        one
        for one in artifacts
        if one.digest in resting - made and one.manifest.stage != _CHECKPOINT and _place(one) not in new
    ]


def _place(artifact: Artifact) -> tuple[str, int | None]:
    return artifact.manifest.stage, artifact.manifest.iteration


def redone(work: Work, jobs: Sequence[Job]) -> list[Redone]:
    """Return the jobs that are not published though an artifact of their stage and iteration is.

    Raises:
        ArtifactError: A manifest is damaged.
        StorageError: The store cannot be read.
    """
    newest: dict[tuple[str, int | None], Artifact] = {}
    for one in list_artifacts(work.store, work.layout.run):
        there = newest.get(_place(one))
        if there is None or there.manifest.created_at < one.manifest.created_at:
            newest[_place(one)] = one
    found = []
    for job in jobs:
        old = newest.get((job.stage, job.iteration))
        if old is not None and work.find(job) is None:
            found.append(Redone(job, old, _differs(job, old)))
    return found


def _differs(job: Job, old: Artifact) -> tuple[str, ...]:
    """Say what gives a job another digest than an artifact's."""
    made = old.manifest
    why = [] if canonical_json(dict(job.reads)) == canonical_json(made.config) else ["settings"]
    why += [] if job.code == made.code else ["code"]
    inputs = {role: source.digest for role, source in job.inputs.items()}
    why += [] if inputs == made.inputs else ["inputs"]
    return tuple(why or ["table versions"])
