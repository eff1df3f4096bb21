"""The check before all interventions: recorded actions end as recorded, from a restored state on too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pivotopd.diagnosis.interventions import Case, start_at
from pivotopd.environments.base import Env
from pivotopd.environments.replay import Reach
from pivotopd.errors import ReplayDivergence
from pivotopd.records import Turn
from pivotopd.rollout import Forced, Job, Played


def recorded_jobs(cases: Sequence[Case], how: Reach) -> list[Job]:
    """Return jobs that start as the intervention ``none`` and then do what was recorded.

    A state that was restored truly ends each of them as it was recorded: see
    """
    return [
        Job(
            f"recorded/{case.transcript.episode.episode}",
            case.transcript.task,
            f"recorded/{case.transcript.episode.episode}",
            0,
            case.transcript.episode.seed,
            start_at(case.transcript, case.pivot + 1, how),
            forced=_repeating(case.transcript.turns),
        )
        for case in cases
    ]


def _repeating(turns: Sequence[Turn]) -> Forced:
    def forced(_env: Env, turn: int) -> str | None:
        return turns[turn].action if turn < len(turns) else None

    return forced


def check_restored(cases: Sequence[Case], played: Iterable[Played]) -> None:
    """Compare replays of :func:`recorded_jobs` with the record, turn by turn and in their ends.

    Raises:
        ReplayDivergence: Some differ; names the first one and in what.
    """
    texts = differences(cases, played)
    if texts:
        raise ReplayDivergence(
            f"{len(texts)} of {len(cases)} restored episodes do not end as recorded; the first: {texts[0]}",
            mend="the environment or its data changed since the episodes were played; play them anew",
        )


def differences(cases: Sequence[Case], played: Iterable[Played]) -> list[str]:
    """Return, by episode, in what the replays of :func:`recorded_jobs` differ from the record."""
    found = {one.episode.episode: one for one in played}
    texts = []
    for case in cases:
        name = case.transcript.episode.episode
        difference = _difference(case, found[f"recorded/{name}"])
        if difference is not None:
            texts.append(f"{name}: {difference}")
    return texts


def _difference(case: Case, now: Played) -> str | None:
    then, rest = case.transcript.episode, case.transcript.turns[case.pivot + 1 :]
    if now.episode.error is not None:
        return now.episode.error
    for recorded, turn in zip(rest, now.turns, strict=False):
        for name in ("observation", "state_hash", "next_observation", "reward"):
            if getattr(recorded, name) != getattr(turn, name):
                return f"another {name} at turn {turn.turn}"
    if len(now.turns) != len(rest):
        return f"{case.pivot + 1 + len(now.turns)} turns, recorded {len(case.transcript.turns)}"
    if (now.episode.won, now.episode.termination) != (then.won, then.termination):
        return f"it ends with {now.episode.termination}, recorded {then.termination}"
    return None
