"""What evaluations say: outcomes of one policy, and the figures of one or several seeds.

Nothing here reads files: episodes and replays come in as records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pivotopd.comparison.intervals import TURNS_DRAWS, Floats, mean_by_type, mean_over, ratio_over
from pivotopd.diagnosis.bootstrap import Interval
from pivotopd.records import Episode, Replay


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A task of the panel: its type, and the share of its episodes that were won."""

    task: str
    family: str
    won: float


@dataclass(frozen=True, slots=True)
class MistakeOutcome:
    """A recorded mistake after all its replays.

    Attributes:
        key: Episode and state that the replays went on from.
        replays: Number of replays.
        recovered: Replays that completed the task.
        turns: Turns after the mistake, summed over the recovered ones.
        distance: Shortest remaining turns after the mistake; None where it made the task unsolvable.
    """

    key: tuple[str, str]
    replays: int
    recovered: int
    turns: int
    distance: int | None

    @property
    def rate(self) -> float:
        """Share of the replays that recovered."""
        return self.recovered / self.replays


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation of one run.

    Attributes:
        iteration: Updates behind the policy.
        policy: Digest of the policy.
        tasks: Outcomes of the panel, by task.
        mistakes: Outcomes of the replayed mistakes, by key; empty where none was replayed.
    """

    iteration: int
    policy: str
    tasks: tuple[TaskOutcome, ...]
    mistakes: tuple[MistakeOutcome, ...]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery from recorded mistakes, each of which counts the same.

    Attributes:
        mistakes: Mistakes a seed (the mean, should seeds differ).
        replays: Replays of all seeds.
        recovered: Those that completed the task.
        rate: Mean over mistakes of the share that recovered.
        turns: Mean turns from the mistake to completion among recovered replays; None without any.
        optimal: Mean shortest remaining turns over the mistakes that leave the task solvable.
        paired: How many mistakes went better, worse and as before; None for the reference itself, or where
            no mistake is common.
    """

    mistakes: float
    replays: int
    recovered: int
    rate: Interval
    turns: Interval | None
    optimal: float | None
    paired: Paired | None


@dataclass(frozen=True, slots=True)
class Paired:
    """The sign of (own recovery rate - the reference's), mistake by mistake."""

    improved: int
    worsened: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one arm at one iteration: of one seed, or over seeds.

    Attributes:
        method: Label of the arm, or of the start policy.
        seed: The seed; None over seeds.
        iteration: Updates behind the policy.
        seeds: How many seeds went in.
        success: Share of episodes won.
        by_family: The same by task type.
        family_mean: Unweighted mean over task types: the paper's average.
        recovery: None where no mistake was replayed.
    """

    method: str
    seed: int | None
    iteration: int
    seeds: int
    success: Interval
    by_family: Mapping[str, Interval]
    family_mean: Interval
    recovery: Recovery | None


Rates = Mapping[tuple[str, str], float]
"""Mistake to recovery rate: what improved and worsened compare with."""


def evaluated(
    iteration: int, policy: str, episodes: Sequence[Episode], replays: Sequence[Replay]
) -> Evaluated:
    """Return an evaluation's outcomes; samples of a task and replays of a mistake are taken together."""
    won: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for episode in episodes:
        won[episode.task, episode.family].append(episode.won)
    by_mistake: dict[tuple[str, str], list[Replay]] = defaultdict(list)
    for replay in replays:
        by_mistake[replay.mistake, replay.state_hash].append(replay)
    tasks = [TaskOutcome(task, family, sum(flags) / len(flags)) for (task, family), flags in won.items()]
    mistakes = [_mistake(key, rows) for key, rows in by_mistake.items()]
    return Evaluated(
        iteration,
        policy,
        tuple(sorted(tasks, key=lambda one: one.task)),
        tuple(sorted(mistakes, key=lambda one: one.key)),
    )


def _mistake(key: tuple[str, str], rows: Sequence[Replay]) -> MistakeOutcome:
    recovered = [row for row in rows if row.won]
    turns = sum(row.turns for row in recovered)
    return MistakeOutcome(key, len(rows), len(recovered), turns, rows[0].distance_after)


def rates_of(evaluations: Sequence[Evaluated]) -> dict[tuple[str, str], float]:
    """Return each mistake's recovery rate, averaged over the evaluations that replayed it."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in evaluations:
        for mistake in one.mistakes:
            found[mistake.key].append(mistake.rate)
    return {key: sum(rates) / len(rates) for key, rates in found.items()}


def summarise(
    method: str, seed: int | None, evaluations: Sequence[Evaluated], reference: Rates | None
) -> Summary:
    """Return the figures of evaluations of one panel, one a seed.

    Args:
        method: Label of the arm.
        seed: The seed, or None where the evaluations are those of several.
        evaluations: At least one; all of one iteration and one panel.
        reference: What recovery compares with; None for the reference itself.
    """
    first = evaluations[0]
    values = np.array([[task.won for task in one.tasks] for one in evaluations], dtype=np.float64)
    by_family, family_mean = mean_by_type(values, [task.family for task in first.tasks])
    return Summary(
        method,
        seed,
        first.iteration,
        len(evaluations),
        mean_over(values),
        by_family,
        family_mean,
        _recovery(evaluations, reference),
    )


def _recovery(evaluations: Sequence[Evaluated], reference: Rates | None) -> Recovery | None:
    keys = sorted({mistake.key for one in evaluations for mistake in one.mistakes})
    if not keys:
        return None
    rates, present, recovered, turns = _matrices(evaluations, keys)
    rate = mean_over(rates) if present.all() else ratio_over(rates, present, draws=TURNS_DRAWS)
    assert rate is not None, "there is a mistake"  # noqa: S101
    distances = {m.key: m.distance for one in evaluations for m in one.mistakes if m.distance is not None}
    return Recovery(
        mistakes=float(present.sum()) / len(evaluations),
        replays=sum(mistake.replays for one in evaluations for mistake in one.mistakes),
        recovered=int(recovered.sum()),
        rate=rate,
        turns=ratio_over(turns, recovered, draws=TURNS_DRAWS),
        optimal=sum(distances.values()) / len(distances) if distances else None,
        paired=None if reference is None else _paired(rates_of(evaluations), reference),
    )


def _matrices(
    evaluations: Sequence[Evaluated], keys: Sequence[tuple[str, str]]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return [seeds, mistakes] of rates, of whether replayed, of recovered replays, of their turns.

    Seeds replay the same mistakes as long as their start policy plays the same; where it does not (sums in
    another order on a GPU), a mistake counts where it was made.
    """
    place = {key: index for index, key in enumerate(keys)}
    shape = (len(evaluations), len(keys))
    rates, present, recovered, turns = (np.zeros(shape) for _ in range(4))
    for row, one in enumerate(evaluations):
        for mistake in one.mistakes:
            at = row, place[mistake.key]
            rates[at], present[at] = mistake.rate, 1.0
            recovered[at], turns[at] = mistake.recovered, mistake.turns
    return rates, present, recovered, turns


def _paired(own: Rates, reference: Rates) -> Paired | None:
    common = own.keys() & reference.keys()
    if not common:
        return None
    improved = sum(own[key] > reference[key] + _SAME for key in common)
    worsened = sum(own[key] < reference[key] - _SAME for key in common)
    return Paired(improved, worsened, len(common) - improved - worsened)


_SAME = 1e-9
"""Rates closer than this are equal: means of the same shares may differ in the last bit."""


def first_reaching(values: Mapping[int, float], level: float) -> int | None:
    """Return the first evaluated iteration whose value is at least a level, or None."""
    return min((iteration for iteration, value in values.items() if value >= level), default=None)
