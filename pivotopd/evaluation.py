"""Evaluation: a fixed panel of tasks. Recovery from mistakes is in :mod:`pivotopd.diagnosis`.

The panel is taken at equal steps from the tasks by type and id, so it never depends on machine, worker or
file order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pivotopd.environments.base import Task
from pivotopd.errors import EnvironmentFault
from pivotopd.records import Turn
from pivotopd.rollout import Job, Played
from pivotopd.seeds import seed_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Panel:
    """Success on a panel.

    Attributes:
        episodes: Number of episodes.
        success: Share won.
        success_by_family: The same by task type.
        family_mean: Unweighted mean over task types (the paper's average).
        turns_mean: Mean number of turns.
        admissible_share: Share of turns whose action was admissible.
        valid_share: Share of turns whose reply obeyed the rules.
    """

    episodes: int
    success: float
    success_by_family: Mapping[str, float]
    family_mean: float
    turns_mean: float
    admissible_share: float
    valid_share: float


def panel_of(tasks: Sequence[Task], count: int) -> list[Task]:
    """Return a fixed panel, by id: ``count`` tasks at equal steps, all where there are fewer.

    The steps go through the tasks by type and id, so they keep the types' shares whatever the ids look like.
    """
    ordered = sorted(tasks, key=lambda task: (task.family, task.id))
    return sorted(at_equal_steps(ordered, count), key=lambda task: task.id)


def at_equal_steps(ordered: Sequence[T], count: int) -> list[T]:
    """Return ``count`` items spread over a list, or all where there are fewer."""
    if count >= len(ordered):
        return list(ordered)
    return [ordered[place * len(ordered) // count] for place in range(count)]


def panel_jobs(tasks: Sequence[Task], *, samples: int, seed: int) -> list[Job]:
    """Return the jobs of a panel; seeds depend on task and sample, never on the policy or the iteration."""
    return [
        Job(
            f"panel/{task.id}/{sample:02d}",
            task,
            f"panel/{task.id}",
            sample,
            seed_of("panel", seed, task.id, sample),
        )
        for task in tasks
        for sample in range(samples)
    ]


def summarise_panel(played: Iterable[Played]) -> Panel:
    """Return the figures of a panel's episodes; the order of the episodes does not matter."""
    won: dict[str, list[bool]] = defaultdict(list)
    turns: list[Turn] = []
    lengths: list[int] = []
    for one in played:
        won[one.episode.family].append(one.episode.won)
        lengths.append(one.episode.turns)
        turns += one.turns
    by_family = {family: sum(flags) / len(flags) for family, flags in sorted(won.items())}
    episodes = len(lengths)
    listed = [turn for turn in turns if turn.admissible is not None]
    return Panel(
        episodes=episodes,
        success=sum(sum(flags) for flags in won.values()) / max(1, episodes),
        success_by_family=by_family,
        family_mean=sum(by_family.values()) / max(1, len(by_family)),
        turns_mean=sum(lengths) / max(1, episodes),
        admissible_share=sum(turn.action in (turn.admissible or ()) for turn in listed) / max(1, len(listed)),
        valid_share=sum(turn.valid for turn in turns) / max(1, len(turns)),
    )


def unbroken(played: Iterable[Played], what: str) -> list[Played]:
    """Return episodes by id, none of which the environment may have broken off.

    Args:
        played: The episodes.
        what: What they are, in the plural.

    Raises:
        EnvironmentFault: Some have no true end; names the first one's cause.
    """
    found = sorted(played, key=lambda one: one.episode.episode)
    broken = [one.episode for one in found if one.episode.error]
    if broken:
        raise EnvironmentFault(
            f"{len(broken)} of {len(found)} {what} broke off: {broken[0].error}",
            where=broken[0].episode,
            mend="the environment or its data is damaged, or changed since what it replays was recorded",
        )
    return found
