"""The skill bank: which distilled skills it keeps, and which of them are retrieved for an episode.

Retrieval by task type takes a family's first skills: of won episodes before lost ones, shortest first.
Retrieval by UCB takes one (Skill-SD, arXiv 2604.10674): the unseen first, then the largest
``mean reward + c * sqrt(ln N / n)``. See docs/methods.md, With a skill bank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from pivotopd.environments.base import Task
from pivotopd.records import Episode, Skill, SkillUse
from pivotopd.rollout import Job
from pivotopd.seeds import seed_of


def bank_jobs(tasks: Sequence[Task], *, run_seed: int, count: int) -> list[Job]:
    """Return the episodes that a bank is distilled from: tasks in a shuffled order, again when all came."""
    order = sorted(tasks, key=lambda task: seed_of("skill bank order", run_seed, task.id))
    jobs = []
    for place in range(count):
        lap, index = divmod(place, len(order))
        task = order[index]
        seed = seed_of("skill bank episode", run_seed, task.id, lap)
        jobs.append(Job(f"skills/{place:04d}", task, f"skills/{task.id}", lap, seed))
    return jobs


def bank_of(
    episodes: Sequence[Episode], texts: Sequence[str | None], *, entries: int, teacher: str
) -> list[Skill]:
    """Return the bank, in the order in which retrieval prefers its skills.

    In a family, skills of won episodes come before those of lost ones and those of short episodes before
    those of long ones; the same text is kept once. Families take turns until the bank is full, so that none
    of them is left out for another.

    Args:
        episodes: The episodes that were played for it.
        texts: Their skills, in the same order; None where there is none.
        entries: Most skills kept.
        teacher: Who distilled them.
    """
    ranked = sorted(
        ((one, text) for one, text in zip(episodes, texts, strict=True) if text),
        key=lambda pair: (not pair[0].won, pair[0].turns, pair[0].episode),
    )
    families: dict[str, dict[str, Episode]] = defaultdict(dict)
    for episode, text in ranked:
        families[episode.family].setdefault(text, episode)
    listed = [
        [Skill("", family, text, one.won, one.episode, teacher) for text, one in families[family].items()]
        for family in sorted(families)
    ]
    turns = (skill for skill in chain.from_iterable(zip_longest(*listed)) if skill is not None)
    return [
        replace(skill, skill=f"s{place:03d}") for place, skill in zip(range(entries), turns, strict=False)
    ]


def by_family(bank: Iterable[Skill], family: str, top: int) -> tuple[Skill, ...]:
    """Return a family's first skills, at most ``top``."""
    return tuple(skill for skill in bank if skill.family == family)[:top]


def with_skills(jobs: Iterable[Job], bank: Sequence[Skill], top: int) -> list[Job]:
    """Return the same jobs with the first skills of their task types, at most ``top``, in their prompts."""
    return [
        replace(job, skills=tuple(skill.text for skill in by_family(bank, job.task.family, top)))
        for job in jobs
    ]


@dataclass
class Ucb:
    """Retrieves one skill at a time and learns from each episode's outcome.

    Args:
        bank: The bank.
        exploration: c.
        uses: Statistics of the iterations before.
    """

    bank: Sequence[Skill]
    exploration: float
    uses: Sequence[SkillUse] = ()

    def __post_init__(self) -> None:
        """Start from the statistics of before, with zeros for skills without any."""
        before = {one.skill: one for one in self.uses}
        self._uses = {one.skill: before.get(one.skill, SkillUse(one.skill, 0, 0.0)) for one in self.bank}

    def choose(self, family: str) -> Skill | None:
        """Return the skill of a family to be used next; the first in the bank among equals."""
        candidates = by_family(self.bank, family, len(self.bank))
        total = sum(self._uses[one.skill].uses for one in candidates)
        return max(candidates, key=lambda one: self._score(one.skill, total), default=None)

    def learn(self, skill: Skill, reward: float) -> None:
        """Count one use and its reward."""
        now = self._uses[skill.skill]
        self._uses[skill.skill] = SkillUse(skill.skill, now.uses + 1, now.reward_sum + reward)

    def statistics(self) -> list[SkillUse]:
        """Return every skill's statistics, in the bank's order."""
        return list(self._uses.values())

    def _score(self, skill: str, total: int) -> float:
        now = self._uses[skill]
        if not now.uses:
            return math.inf
        return now.reward_sum / now.uses + self.exploration * math.sqrt(math.log(total) / now.uses)


def retrieved_by_ucb(ucb: Ucb, episodes: Iterable[Episode]) -> Mapping[str, tuple[Skill, ...]]:
    """Return one skill an episode, and let ``ucb`` learn from them.

    The episodes of an iteration are gone through by group and sample, each outcome counted before the next
    choice, so that the result follows from the rollout and the statistics before it alone.
    """
    found: dict[str, tuple[Skill, ...]] = {}
    for episode in sorted(episodes, key=lambda one: (one.group, one.sample)):
        skill = ucb.choose(episode.family)
        found[episode.episode] = () if skill is None else (skill,)
        if skill is not None:
            ucb.learn(skill, float(episode.won))
    return found
