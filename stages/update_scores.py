"""What an update scores: with which models, and under which texts besides the rows' own prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pivotopd.methods.base import Needs
from pivotopd.models.base import Scorer
from pivotopd.records import Episode, Label, Lesson, SkillUse, Turn
from pivotopd.scoring import Signaller
from stages.ablations import labels_read
from stages.retrieval import skills_retrieved
from stages.work import Job, Source, Work


@dataclass(frozen=True, slots=True)
class Beside:
    """What an iteration's rows are scored with.

    Attributes:
        labels: Labels of the episodes.
        lessons: Lessons of the episodes.
        winners: Ids of the won episodes, in the order of samples: who is a peer to learn from.
        skills: Texts of each episode's skills by its id.
        uses: Statistics of skills where UCB retrieves them.
    """

    labels: Sequence[Label]
    lessons: Sequence[Lesson]
    winners: Sequence[str]
    skills: Mapping[str, tuple[str, ...]]
    uses: Sequence[SkillUse] | None


def read_beside(work: Work, job: Job, episodes: Mapping[str, Episode]) -> Beside:
    """Read what the rows of an update are scored with.

    Args:
        work: The process's share of the run.
        job: The update.
        episodes: The iteration's episodes by id.
    """
    won = sorted((one for one in episodes.values() if one.won), key=lambda one: (one.group, one.sample))
    skills, uses = skills_retrieved(work, job, episodes.values())
    return Beside(
        labels_read(work, job, {key: one.turns for key, one in episodes.items()}),
        work.input(job, "label").rows(Lesson) if "label" in job.inputs else [],
        [one.episode for one in won],
        skills,
        uses,
    )


def trains(rows: Sequence[Turn], episodes: Mapping[str, Episode]) -> list[Turn]:
    """Return the rows that train: an episode that the environment broke off says nothing of the policy."""
    return [row for row in rows if episodes[row.episode].error is None]


def signaller_of(work: Work, job: Job, needs: Needs, scorer: Callable[[Source], Scorer]) -> Signaller:
    """Return what scores the rows of an update.

    Args:
        work: The process's share of the run.
        job: The update.
        needs: What its method asks for.
        scorer: Returns what scores with a policy; the same object for the same one.
    """
    policy, reference = job.inputs["policy"], job.inputs["reference"]
    larger = scorer(job.inputs["teacher"]) if "teacher" in job.inputs else None
    return Signaller(work.prompter(policy), scorer(policy), scorer(reference), needs, larger)
