"""How deep an iteration's rollouts go, read from what the iteration before has stored."""

from __future__ import annotations

from pivotopd.depth import Depth
from pivotopd.publish import ArtifactWriter
from stages.work import Job, Work

_FILE = "depth.json"


def depth_before(work: Work, job: Job) -> Depth:
    """Return what probes had found before a job's iteration.

    Raises:
        ArtifactError: The update before has stored nothing: it was made by a method without probes.
    """
    if "depth" not in job.inputs:
        return Depth()
    update = work.input(job, "depth")
    return Depth.from_json(update.log(_FILE), update.uri)


def store_depth(writer: ArtifactWriter, depth: Depth) -> None:
    """Keep what probes have found with an update, for the next iteration."""
    writer.write_log(_FILE, depth.to_json())


def turn_limit(work: Work, job: Job) -> int:
    """Return the turn limit of a rollout: the environment's, or the method's where that is lower."""
    limit, cut = work.config.environment.max_turns, work.config.method.depth_cut
    found = None if cut is None else cut.limit(job.iteration or 0, depth_before(work, job))
    return limit if found is None else min(limit, found)
