"""Which skills of the run's bank the rows of an update are scored under."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pivotopd.records import Episode, Skill, SkillUse
from pivotopd.skills import Ucb, by_family, retrieved_by_ucb
from stages.work import Job, Work


def skills_retrieved(
    work: Work, job: Job, episodes: Collection[Episode]
) -> tuple[Mapping[str, tuple[str, ...]], list[SkillUse] | None]:
    """Return the texts of each episode's skills by its id, and the statistics of UCB where it retrieves.

    The statistics go on from those that the update before published, which is an input of this one.

    Args:
        work: The process's share of the run.
        job: An update; without the input ``skills`` its method scores under none.
        episodes: The iteration's episodes.
    """
    if "skills" not in job.inputs:
        return {}, None
    bank = work.input(job, "skills").rows(Skill)
    exploration = work.config.method.skill_exploration
    if exploration is None:
        top = work.config.skills.top
        return {
            one.episode: tuple(skill.text for skill in by_family(bank, one.family, top)) for one in episodes
        }, None
    before = work.input(job, "before").rows(SkillUse) if "before" in job.inputs else []
    ucb = Ucb(bank, exploration, before)
    chosen = retrieved_by_ucb(ucb, episodes)
    return {key: tuple(skill.text for skill in skills) for key, skills in chosen.items()}, ucb.statistics()
