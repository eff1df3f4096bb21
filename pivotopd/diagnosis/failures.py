"""Failures: whether each holds a pivotal turn, when, and what its turns did; paper section 2 and App. A.

The oracle sees hidden objects, so exploration is counted apart: a neutral turn that changes the state is a
move that the student may have needed in order to find something.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pivotopd.diagnosis.bootstrap import bootstrap_mean
from pivotopd.diagnosis.figures import Figure, Part, measured
from pivotopd.diagnosis.pivots import PIVOTAL, Reading
from pivotopd.environments.base import Environment
from pivotopd.records_diagnosis import EpisodeReading, TurnReading


def episode_reading(reading: Reading, environment: Environment) -> EpisodeReading:
    """Return an episode's reading as a row."""
    episode, pivot = reading.transcript.episode, reading.pivot
    best: Sequence[str] = ()
    if pivot is not None:
        best = environment.oracle(reading.transcript.task).best_actions(reading.states[pivot], None)
    return EpisodeReading(
        run=episode.run,
        iteration=episode.iteration,
        episode=episode.episode,
        task=episode.task,
        family=episode.family,
        won=episode.won,
        turns=episode.turns,
        kind=reading.kind,
        pivot_turn=pivot,
        oracle_action=best[0] if best else None,
        pivots=sum(turn.change in PIVOTAL for turn in reading.turns),
        wasted_turns=reading.wasted,
        distance_at_start=reading.turns[0].before if reading.turns else None,
    )


def turn_readings(reading: Reading, max_turns: int) -> list[TurnReading]:
    """Return an episode's turns as rows.

    Args:
        reading: The episode.
        max_turns: Turn limit of the episode.
    """
    episode = reading.transcript.episode
    return [
        TurnReading(
            run=episode.run,
            iteration=episode.iteration,
            episode=episode.episode,
            turn=read.turn,
            action=played.action,
            distance_before=read.before,
            distance_after=read.after,
            change=read.change,
            moved=read.moved,
            out_of_reach=read.before is not None and max_turns - read.turn < read.before,
        )
        for read, played in zip(reading.turns, reading.transcript.turns, strict=True)
    ]


def failures_part(
    episodes: Sequence[EpisodeReading], turns: Sequence[TurnReading], *, draws: int, seed: int
) -> Part:
    """Return the figures of failures and of turns; the order of the rows does not matter."""
    ordered = sorted(episodes, key=lambda one: one.episode)
    judged = [one for one in ordered if one.kind in ("after_pivot", "no_pivot")]
    unjudged = sum(one.kind == "unjudged" for one in ordered)
    notes = []
    if not ordered:
        notes.append("No episode was played.")
    elif not judged and not unjudged:
        notes.append("The policy never failed, so no failure can hold a pivotal mistake.")
    elif all(not one.won for one in ordered):
        notes.append("The policy never won.")
    if judged and not any(one.kind == "after_pivot" for one in judged):
        notes.append("No failure holds a pivotal mistake.")
    if unjudged:
        notes.append(
            f"{unjudged} failures are not judged: the oracle gave its search up. They count as failed."
        )
    if turns:
        notes.append(
            "The oracle sees hidden objects, so looking for one in the wrong place is a neutral turn to it."
        )
    figures = [*_breakdown(ordered, draws, seed), *_pivots(judged, draws, seed), *_turns(turns)]
    return Part("failures", "Pivotal mistakes by the oracle", tuple(figures), tuple(notes))


def _breakdown(ordered: Sequence[EpisodeReading], draws: int, seed: int) -> list[Figure]:
    """How episodes end."""

    def share(key: str, label: str, flags: list[bool], published: str = "") -> Figure:
        interval = bootstrap_mean([float(flag) for flag in flags], draws=draws, seed=seed)
        return measured(f"failures/{key}", label, "share", interval, published=published)

    before = [one.kind == "after_pivot" for one in ordered]
    without = [one.kind == "no_pivot" for one in ordered]
    recovered = [one.pivots > 0 for one in ordered if one.won]
    unjudged = float(sum(one.kind == "unjudged" for one in ordered))
    return [
        Figure("failures/episodes", "episodes", "count", float(len(ordered)), published="140"),
        share("failed", "episodes that fail", [not one.won for one in ordered], "79 %; standard OPD 56 %"),
        share("after_pivot", "... after a pivotal mistake", before, "51 %; standard OPD 49 %"),
        share("no_pivot", "... without one, task unfinished", without, "28 %; standard OPD 7 %"),
        share("won_with_pivot", "won episodes with a pivotal turn", recovered),
        Figure("failures/unjudged", "failures not judged", "count", unjudged),
    ]


def _pivots(judged: Sequence[EpisodeReading], draws: int, seed: int) -> list[Figure]:
    """The first pivotal turns of failures."""
    flags = [float(one.kind == "after_pivot") for one in judged]
    first = [one for one in judged if one.kind == "after_pivot"]
    pivots = [one.pivot_turn for one in first if one.pivot_turn is not None]
    wasted = [one.wasted_turns for one in first if one.wasted_turns is not None]
    held = bootstrap_mean(flags, draws=draws, seed=seed)
    return [
        measured(
            "failures/pivotal_share",
            "failures with a pivotal mistake",
            "share",
            held,
            published="59 % (155 of 262)",
        ),
        Figure(
            "failures/pivot_turn",
            "first pivotal turn, median, from 0",
            "turns",
            float(median(pivots)) if pivots else None,
            count=len(pivots),
            published="8-12 of 30",
        ),
        Figure(
            "failures/wasted_turns",
            "turns wasted after it, median",
            "turns",
            float(median(wasted)) if wasted else None,
            count=len(wasted),
            published="18-21",
        ),
    ]


def _turns(turns: Sequence[TurnReading]) -> list[Figure]:
    """What all turns did, exploration apart."""

    def share(key: str, label: str, count: int) -> Figure:
        return Figure(f"turns/{key}", label, "share", count / len(turns) if turns else None, count=len(turns))

    def of(change: str) -> int:
        return sum(turn.change == change for turn in turns)

    exploring = sum(turn.change == "neutral" and turn.moved for turn in turns)
    late = sum(turn.out_of_reach for turn in turns)
    return [
        share("progress", "turns that progress", of("progress")),
        share("neutral", "neutral turns", of("neutral")),
        share("neutral_moves", "... that change the state: exploration or detour", exploring),
        share("regress", "turns that regress", of("regress")),
        share("dead", "turns that make the task unsolvable", of("dead")),
        share("unknown", "turns not judged", of("unknown")),
        share("out_of_reach", "turns with fewer turns left than the shortest way", late),
    ]
