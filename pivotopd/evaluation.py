"""Evaluation: a fixed panel of tasks, and recovery from recorded pivotal mistakes.

The paper's protocol (App. E.2) in a small form; see docs/method.md, Evaluation and recovery rate.

The panel is taken at equal steps from the tasks by type and id, so it never depends on machine, worker or
file order. The mistakes are the first oracle-pivotal turns of the start policy's failed episodes; every
policy replays the same ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pivotopd.environments.base import Env, Environment, StepResult, Task
from pivotopd.environments.replay import Reach, reach
from pivotopd.errors import EnvironmentFault
from pivotopd.records import Turn
from pivotopd.rollout import Job, Played, Start
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Transcript

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mistake:
    """A recorded pivotal mistake: the first turn of an episode after which the distance grew.

    Attributes:
        transcript: The episode.
        turn: Index of the pivotal turn.
        distance_after: Shortest remaining turns after it; None when it made the task unsolvable.
    """

    transcript: Transcript
    turn: int
    distance_after: int | None


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


@dataclass(frozen=True, slots=True)
class RecoveryRate:
    """Recovery from mistakes: each mistake counts the same.

    Attributes:
        mistakes: Number of mistakes.
        replays: Replays a mistake.
        rate: Mean over mistakes of the share of replays that were won.
        turns_mean: Mean turns from the mistake to success among won replays; None without any.
    """

    mistakes: int
    replays: int
    rate: float
    turns_mean: float | None


def panel_of(tasks: Sequence[Task], count: int) -> list[Task]:
    """Return a fixed panel, by id: ``count`` tasks at equal steps, all where there are fewer.

    The steps go through the tasks by type and id, so they keep the types' shares whatever the ids look like.
    """
    ordered = sorted(tasks, key=lambda task: (task.family, task.id))
    return sorted(at_equal_steps(ordered, count), key=lambda task: task.id)


def at_equal_steps(ordered: list[T], count: int) -> list[T]:
    """Return ``count`` items spread over a list, or all where there are fewer."""
    if count >= len(ordered):
        return ordered
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


def find_mistakes(
    environment: Environment, transcripts: Iterable[Transcript], *, limit: int, also_won: bool = False
) -> tuple[list[Mistake], int]:
    """Return the first oracle-pivotal turn of each failed episode, at equal steps where they are too many.

    Args:
        environment: Gives the oracles.
        transcripts: The episodes.
        limit: Most mistakes.
        also_won: Look at won episodes too.

    Returns:
        The mistakes, by episode id, and the number of episodes that the oracle could not judge.
    """
    found: list[Mistake] = []
    given_up = 0
    for transcript in sorted(transcripts, key=lambda one: one.episode.episode):
        if transcript.episode.won and not also_won:
            continue
        try:
            mistake = _first_mistake(environment, transcript)
        except EnvironmentFault:
            given_up += 1
            continue
        if mistake is not None:
            found.append(mistake)
    return at_equal_steps(found, limit), given_up


def _first_mistake(environment: Environment, transcript: Transcript) -> Mistake | None:
    """Return the first pivotal turn after which the episode went on, or None."""
    oracle = environment.oracle(transcript.task)
    previous: int | None = None
    for index, turn in enumerate(transcript.turns):
        if turn.snapshot is None:
            return None
        distance = oracle.distance(turn.snapshot)
        if index and previous is not None and (distance is None or distance > previous):
            return Mistake(transcript, index - 1, distance)
        if distance is None:
            return None
        previous = distance
    return None


def recovery_jobs(mistakes: Sequence[Mistake], *, replays: int, seed: int, how: Reach) -> list[Job]:
    """Return the jobs that replay each mistake and let the policy go on alone."""
    jobs = []
    for mistake in mistakes:
        episode = mistake.transcript.episode
        start = Start(mistake.transcript.turns[: mistake.turn + 1], _opener(mistake, how))
        for replay in range(replays):
            name = f"recovery/{episode.task}/{episode.sample:02d}/{replay:02d}"
            job_seed = seed_of("recovery replay", seed, episode.task, episode.sample, replay)
            jobs.append(
                Job(name, mistake.transcript.task, f"recovery/{episode.episode}", replay, job_seed, start)
            )
    return jobs


def _opener(mistake: Mistake, how: Reach) -> Callable[[Env], StepResult]:
    """Return what brings an instance to the state after the mistake, checked against the record."""
    transcript = mistake.transcript

    def open_at(env: Env) -> StepResult:
        return reach(env, transcript.task, transcript.episode.seed, transcript.turns, mistake.turn + 1, how)

    return open_at


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


def summarise_recovery(played: Iterable[Played], *, replays: int) -> RecoveryRate | None:
    """Return the recovery rate, or None when there was no mistake to replay."""
    won: dict[str, list[bool]] = defaultdict(list)
    lengths: list[int] = []
    for one in played:
        won[one.episode.group].append(one.episode.won)
        if one.episode.won:
            lengths.append(one.episode.turns)
    if not won:
        return None
    rate = sum(sum(flags) / len(flags) for flags in won.values()) / len(won)
    return RecoveryRate(len(won), replays, rate, sum(lengths) / len(lengths) if lengths else None)
