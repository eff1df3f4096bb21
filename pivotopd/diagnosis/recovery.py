"""Recovery: a policy goes on alone from recorded mistakes; how often, and how fast, it completes the task.

Paper App. E.2; see docs/diagnosis.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pivotopd.diagnosis.bootstrap import Interval, bootstrap_mean, bootstrap_ratio
from pivotopd.diagnosis.figures import Figure, Part, measured
from pivotopd.diagnosis.mistakes import Mistake
from pivotopd.environments.base import Env, StepResult
from pivotopd.environments.replay import Reach, reach
from pivotopd.records_diagnosis import Recovery
from pivotopd.rollout import Job, Origin, Played, Start
from pivotopd.seeds import seed_of


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


def recoveries(
    mistakes: Sequence[Mistake],
    played: Iterable[Played],
    origin: Origin,
    max_turns: int,
    start_rates: Mapping[str, float] | None = None,
) -> list[Recovery]:
    """Return what became of each mistake, by id.

    Args:
        mistakes: The set.
        played: The replays of :func:`recovery_jobs`.
        origin: Run, iteration and policy that were replayed.
        max_turns: Turn limit of an episode.
        start_rates: The start policy's rates by mistake; None for the start policy itself.
    """
    by_group: dict[str, list[Played]] = defaultdict(list)
    for one in played:
        by_group[one.episode.group].append(one)
    rows = []
    for mistake in sorted(mistakes, key=lambda one: one.transcript.episode.episode):
        name = mistake.transcript.episode.episode
        replays = by_group[f"recovery/{name}"]
        won = sorted(one.episode.turns for one in replays if one.episode.won)
        rate = len(won) / len(replays)
        start = None if start_rates is None else start_rates[name]
        rows.append(
            Recovery(
                run=origin.run,
                iteration=origin.iteration,
                policy=origin.policy,
                mistake=name,
                replays=len(replays),
                won=len(won),
                rate=rate,
                turns=won,
                turns_left=max_turns - mistake.turn - 1,
                optimal_turns=mistake.distance_after,
                start_rate=start,
                change=None if start is None else _change(rate, start),
            )
        )
    return rows


def _change(rate: float, start: float) -> str:
    return "unchanged" if rate == start else "improved" if rate > start else "worsened"


def recovered_within(rows: Sequence[Recovery], max_turns: int) -> list[float]:
    """Return the mean over mistakes of the rate of completing within n turns, for n = 0 .. ``max_turns``."""
    return [
        sum(sum(turns <= within for turns in row.turns) / row.replays for row in rows) / len(rows)
        if rows
        else 0.0
        for within in range(max_turns + 1)
    ]


def turns_to_recover(rows: Sequence[Recovery], *, draws: int, seed: int) -> Interval | None:
    """Return the mean turns from mistake to completion over won replays; mistakes are drawn again."""
    return bootstrap_ratio(
        [float(sum(row.turns)) for row in rows], [float(row.won) for row in rows], draws=draws, seed=seed
    )


def recovery_part(rows: Sequence[Recovery], *, draws: int, seed: int) -> Part:
    """Return the figures of recovery."""
    notes = []
    replays = sum(row.replays for row in rows)
    solvable = [float(row.optimal_turns) for row in rows if row.optimal_turns is not None]
    won = [row for row in rows if row.won and row.optimal_turns is not None]
    own = [float(row.optimal_turns or 0) for row in won]
    rate = bootstrap_mean([row.rate for row in rows], draws=draws, seed=seed)
    spent = turns_to_recover(rows, draws=draws, seed=seed)
    figures = [
        Figure("recovery/mistakes", "mistakes in the set", "count", float(len(rows)), published="72"),
        Figure("recovery/replays", "replays", "count", float(replays), published="576"),
        Figure("recovery/recovered", "replays that recovered", "count", float(sum(row.won for row in rows)),
               published="base 48, standard OPD 117, preventive only 264, PivotOPD 419"),
        measured("recovery/rate", "recovery rate", "share", rate,
                 published="base 8.3 %, standard OPD 20.3 %, preventive only 45.8 %, PivotOPD 72.7 %"),
        measured("recovery/turns", "turns to recover", "turns", spent,
                 published="base 13.4, standard OPD 12.3, PivotOPD 9.7"),
        measured("recovery/optimal_turns", "shortest way, all mistakes", "turns",
                 bootstrap_mean(solvable, draws=draws, seed=seed), published="6.2"),
        measured("recovery/optimal_turns_of_recovered", "shortest way, mistakes recovered from", "turns",
                 bootstrap_mean(own, draws=draws, seed=seed), published="5.2-5.8"),
    ]  # fmt: skip
    compared = [row for row in rows if row.change is not None]
    published = {
        "improved": "standard OPD 20, preventive only 47, PivotOPD 60",
        "worsened": "standard OPD 4, preventive only 6, PivotOPD 0",
        "unchanged": "standard OPD 48, preventive only 19, PivotOPD 12",
    }
    for change, text in published.items():
        count = float(sum(row.change == change for row in compared)) if compared else None
        figures.append(
            Figure(f"recovery/{change}", f"mistakes {change} against the start", "count", count,
                   count=len(compared), published=text)
        )  # fmt: skip
    dead = len(rows) - len(solvable)
    if not rows:
        notes.append("There is no mistake to recover from: the start policy made none that a turn follows.")
    elif not any(row.won for row in rows):
        notes.append("No replay recovered, so there is no number of turns to recover.")
    if dead:
        notes.append(f"{dead} of the mistakes made the task unsolvable; they count in the rate.")
    if rows and not compared:
        notes.append("This is the start policy, so there is nothing to compare it with.")
    if rows:
        notes.append("Each policy recovers from another set of mistakes; compare its turns with the shortest "
                     "way of those.")  # fmt: skip
    return Part("recovery", "Recovery from known mistakes", tuple(figures), tuple(notes))
