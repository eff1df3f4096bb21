"""Interventions by replay: which change of one failed episode lets the same policy still finish it.

Paper App. A; see docs/diagnosis.md. Every trial restores a state of the recorded episode, does something
there, and leaves the rest to the policy. The turn limit counts the recorded turns before it too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pivotopd.diagnosis.bootstrap import Interval, bootstrap_mean
from pivotopd.environments.base import Env, Environment, StepResult, TaskOracle
from pivotopd.environments.replay import Reach, reach
from pivotopd.errors import EnvironmentFault
from pivotopd.records_probes import Intervention
from pivotopd.rollout import Forced, Job, Origin, Played, Start
from pivotopd.seeds import rng_of, seed_of
from pivotopd.teacher.base import Transcript

NONE = "none"
RESAMPLE = "resample"
OTHER_TURN = "other_turn"
AT_PIVOT = "at_pivot"


@dataclass(frozen=True, slots=True)
class Case:
    """A failed episode with a pivotal turn.

    Attributes:
        transcript: The episode.
        pivot: Index of its first pivotal turn.
        pivotal: Indices of all of its pivotal turns.
    """

    transcript: Transcript
    pivot: int
    pivotal: frozenset[int]


@dataclass(frozen=True, slots=True)
class Trial:
    """One replay of a case.

    Attributes:
        case: The failed episode.
        intervention: What is done; one of :func:`interventions_of`.
        repeat: Number of the repeat, from 0.
        job: What a player has to play.
    """

    case: Case
    intervention: str
    repeat: int
    job: Job


@dataclass(frozen=True, slots=True)
class InterventionRate:
    """Success under one intervention: the mean over episodes of the mean over repeats.

    Attributes:
        intervention: Its name.
        trials: Replays that count.
        left_out: Replays that the environment broke off, which count nowhere.
        success: Share won with its interval over episodes; None without any episode.
    """

    intervention: str
    trials: int
    left_out: int
    success: Interval | None


def interventions_of(after: Sequence[int]) -> tuple[str, ...]:
    """Return the names of all interventions, in the paper's order.

    Args:
        after: Numbers of turns after the mistake at which the oracle acts, one intervention each.
    """
    return (NONE, RESAMPLE, OTHER_TURN, AT_PIVOT, *(f"after_{count}" for count in after))


def other_turn(case: Case, seed: int) -> int | None:
    """Draw one of an episode's turns that are not pivotal; None where it lies before the pivot.

    A correction before the mistake undoes the mistake as well, so it says nothing about other turns.
    """
    episode = case.transcript.episode
    others = [turn for turn in range(len(case.transcript.turns)) if turn not in case.pivotal]
    if not others:
        return None
    rng = rng_of("other turn", seed, episode.episode)
    drawn = others[int(rng.integers(len(others)))]
    return drawn if drawn > case.pivot else None


def trials_of(
    environment: Environment,
    cases: Sequence[Case],
    *,
    repeats: int,
    after: Sequence[int],
    seed: int,
    how: Reach,
) -> list[Trial]:
    """Return the trials of all interventions on all cases: one player may take all their jobs at once.

    Args:
        environment: Gives the oracles, which see hidden objects.
        cases: The failed episodes.
        repeats: Replays of an episode under each intervention.
        after: Numbers of turns after the mistake at which the oracle acts.
        seed: Seed of the drawn turns and of the policy's responses.
        how: How a recorded state is reached.
    """
    return [
        _trial(case, name, repeat, start_at(case.transcript, turn, how), forced, seed)
        for case in cases
        for name, turn, forced in _plans(environment, case, after, seed)
        for repeat in range(repeats)
    ]


def _plans(
    environment: Environment, case: Case, after: Sequence[int], seed: int
) -> Iterator[tuple[str, int, Forced | None]]:
    """Yield each intervention's name, the first turn that is not replayed, and who acts there."""
    oracle, pivot, drawn = environment.oracle(case.transcript.task), case.pivot, other_turn(case, seed)
    yield NONE, pivot + 1, None
    yield RESAMPLE, pivot, None
    if drawn is not None:
        yield OTHER_TURN, drawn, _acting(oracle, frozenset({drawn}))
    yield AT_PIVOT, pivot, _acting(oracle, frozenset({pivot}))
    for count in after:
        turns = frozenset(range(pivot + 1, pivot + 1 + count))
        yield f"after_{count}", pivot + 1, _acting(oracle, turns)


def _trial(case: Case, name: str, repeat: int, start: Start, forced: Forced | None, seed: int) -> Trial:
    episode = case.transcript.episode
    job = Job(
        f"{name}/{episode.episode}/{repeat:02d}",
        case.transcript.task,
        f"{name}/{episode.episode}",
        repeat,
        seed_of("intervention", seed, name, episode.episode, repeat),
        start,
        forced=forced,
    )
    return Trial(case, name, repeat, job)


def start_at(transcript: Transcript, turn: int, how: Reach) -> Start:
    """Return the recorded state before a turn as a start; the turn may be one past the last."""

    def open_at(env: Env) -> StepResult:
        return reach(env, transcript.task, transcript.episode.seed, transcript.turns, turn, how)

    return Start(transcript.turns[:turn], open_at)


def _acting(oracle: TaskOracle, turns: frozenset[int]) -> Forced:
    """Return what does the oracle's preferred action at some turns, asked anew at each.

    Where the task has become unsolvable the oracle has none, and the policy is asked.
    """

    def forced(env: Env, turn: int) -> str | None:
        if turn not in turns:
            return None
        state = env.dump()
        if state is None:
            raise EnvironmentFault(
                "the oracle needs the environment's state, and this environment gives none"
            )
        return next(iter(oracle.best_actions(state, None)), None)

    return forced


def outcomes(trials: Sequence[Trial], played: Iterable[Played], origin: Origin) -> list[Intervention]:
    """Return one row a trial, in the order of the trials.

    Args:
        trials: The trials.
        played: What became of their jobs, in any order.
        origin: The run and the policy that played.
    """
    found = {one.episode.episode: one for one in played}
    return [_outcome(trial, found[trial.job.episode], origin) for trial in trials]


def _outcome(trial: Trial, played: Played, origin: Origin) -> Intervention:
    case, episode = trial.case, trial.case.transcript.episode
    start = len(trial.job.start.turns) if trial.job.start else 0
    return Intervention(
        run=origin.run,
        iteration=origin.iteration,
        policy=origin.policy,
        episode=episode.episode,
        task=episode.task,
        family=episode.family,
        intervention=trial.intervention,
        repeat=trial.repeat,
        seed=trial.job.seed,
        pivot_turn=case.pivot,
        start_turn=start,
        forced_turns=[turn.turn for turn in played.turns if turn.source == "forced"],
        forced_actions=[turn.action for turn in played.turns if turn.source == "forced"],
        won=played.episode.won,
        turns=start + played.episode.turns,
        termination=played.episode.termination,
        error=played.episode.error,
    )


def summarise(
    rows: Iterable[Intervention], names: Sequence[str], *, draws: int, seed: int
) -> list[InterventionRate]:
    """Return the success under each intervention; the order of the rows does not matter.

    Args:
        rows: Outcomes of trials.
        names: Interventions to report, and no others; one without any row has no success.
        draws: Resamples of the interval.
        seed: Seed of the resamples.
    """
    won: dict[str, dict[str, list[bool]]] = {name: defaultdict(list) for name in names}
    broken = dict.fromkeys(names, 0)
    for row in rows:
        if row.intervention not in won:
            continue
        if row.error is None:
            won[row.intervention][row.episode].append(row.won)
        else:
            broken[row.intervention] += 1
    rates = []
    for name in names:
        shares = [sum(flags) / len(flags) for _, flags in sorted(won[name].items())]
        trials = sum(len(flags) for flags in won[name].values())
        rates.append(
            InterventionRate(name, trials, broken[name], bootstrap_mean(shares, draws=draws, seed=seed))
        )
    return rates
