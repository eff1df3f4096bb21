"""What a method's wishes change in the stages: pivotal turns, and what recovery rows are."""

from __future__ import annotations

from collections.abc import Mapping

from pivotopd.ablations import at_random_turns
from pivotopd.config import RunConfig
from pivotopd.records import Label
from pivotopd.recovery import Recoverer
from pivotopd.reverse_recovery import ReverseRecoverer
from stages.work import Job, Work


def labels_read(work: Work, job: Job, turns: Mapping[str, int]) -> list[Label]:
    """Return the labels that a stage goes by: the teacher's, or moved to random turns.

    Args:
        work: The process's share of the run.
        job: A job with the input ``label``; without it there are no labels.
        turns: Number of turns of each episode.
    """
    if "label" not in job.inputs:
        return []
    labels = work.input(job, "label").rows(Label)
    if work.config.method.random_pivots:
        return at_random_turns(labels, turns, work.config.seed, job.iteration or 0)
    return labels


def recoverer_kind(config: RunConfig) -> type[Recoverer]:
    """Return what makes the recovery rows."""
    return ReverseRecoverer if config.method.reverse_recovery else Recoverer
