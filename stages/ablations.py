"""What the settings for ablations change in the stages: pivotal turns, and what recovery rows are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pivotopd.ablations import at_random_turns
from pivotopd.config import RunConfig
from pivotopd.methods.sections import PivotOpdMethod
from pivotopd.records import Label
from pivotopd.recovery import Recoverer
from pivotopd.reverse_recovery import ReverseRecoverer
from stages.work import Job, Work


def read_by_recover(config: RunConfig) -> dict[str, Any]:
    """Return what the recover stage reads of the method; empty for methods without recovery."""
    if not isinstance(config.method, PivotOpdMethod):
        return {}
    return config.method.model_dump(mode="json", include={"pivot_turns", "hint", "recovery_kl"})


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
    method = work.config.method
    if isinstance(method, PivotOpdMethod) and method.pivot_turns == "random":
        return at_random_turns(labels, turns, work.config.seed, job.iteration or 0)
    return labels


def recoverer_kind(config: RunConfig) -> type[Recoverer]:
    """Return what makes the recovery rows."""
    reverse = isinstance(config.method, PivotOpdMethod) and config.method.recovery_kl == "reverse"
    return ReverseRecoverer if reverse else Recoverer
