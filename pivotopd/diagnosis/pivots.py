"""Pivotal turns by the exact oracle: every turn of an episode is classed by the distances around it.

Paper section 3.1 and App. A; see docs/diagnosis.md. The oracle sees hidden objects: a turn that looks for one
in the wrong place is neutral to it, never progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pivotopd.environments.base import Environment, TaskOracle
from pivotopd.environments.distances import Change, classify_distances
from pivotopd.environments.replay import Passed, replay
from pivotopd.errors import ReplayDivergence, SearchLimit
from pivotopd.teacher.base import Transcript

TurnClass = Change | Literal["unknown"]
FailureKind = Literal["won", "after_pivot", "no_pivot", "unjudged"]
PIVOTAL: frozenset[TurnClass] = frozenset({"regress", "dead"})


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn as the oracle sees it.

    Attributes:
        turn: Index of the turn, from 0.
        before: Shortest remaining turns before it; None when unsolvable or unknown.
        after: The same after it.
        change: Its class; ``unknown`` where a search was given up.
        moved: The action changed the environment's state.
    """

    turn: int
    before: int | None
    after: int | None
    change: TurnClass
    moved: bool


@dataclass(frozen=True)
class Reading:
    """An episode as the oracle sees it.

    Attributes:
        transcript: The episode.
        turns: All of its turns.
        states: The environment's state before each turn and after the last one, as the oracle takes it.
    """

    transcript: Transcript
    turns: tuple[ReadTurn, ...]
    states: tuple[bytes, ...]

    @cached_property
    def pivot(self) -> int | None:
        """Index of the first pivotal turn, or None; unknown turns before it do not hide it."""
        return next((turn.turn for turn in self.turns if turn.change in PIVOTAL), None)

    @property
    def kind(self) -> FailureKind:
        """How the episode ended; ``unjudged`` where an unknown turn could hold the first pivot."""
        if self.transcript.episode.won:
            return "won"
        seen = self.turns if self.pivot is None else self.turns[: self.pivot]
        if any(turn.change == "unknown" for turn in seen):
            return "unjudged"
        return "no_pivot" if self.pivot is None else "after_pivot"

    @property
    def wasted(self) -> int | None:
        """Turns played after the first pivotal one."""
        return None if self.pivot is None else len(self.turns) - self.pivot - 1


def read_episode(environment: Environment, transcript: Transcript) -> Reading:
    """Replay an episode next to the oracle; every answer, state and the verdict must be the recorded ones.

    Raises:
        ReplayDivergence: The replay differs from the record.
        EnvironmentFault: The environment has no oracle, or gives no states.
    """
    states = replayed(environment, transcript)
    turns = tuple(read_turns(environment.oracle(transcript.task), states))
    return Reading(transcript, turns, tuple(one.state for one in states))


def replayed(environment: Environment, transcript: Transcript) -> list[Passed]:
    """Return the state before each turn of an episode and after the last one, by a checked replay.

    Raises:
        ReplayDivergence: The replay differs from the record.
        EnvironmentFault: The environment gives no states.
    """
    episode = transcript.episode
    env = environment.open()
    try:
        states, last = replay(env, transcript.task, episode.seed, transcript.turns)
    finally:
        env.close()
    if transcript.turns and last.won != episode.won:
        raise ReplayDivergence(
            f"the episode was {'won' if episode.won else 'lost'}, and its replay was not",
            where=episode.episode,
            mend="the environment or its data changed since the episode was played; play it again",
        )
    return states


def read_turns(oracle: TaskOracle, states: Sequence[Passed]) -> Iterator[ReadTurn]:
    """Yield the turns between states, one search a state; who only wants the first pivot stops there."""
    previous: int | None = None
    known = False
    for index, state in enumerate(states):
        try:
            distance, searched = oracle.distance(state.state), True
        except SearchLimit:
            distance, searched = None, False
        if index:
            change: TurnClass = classify_distances(previous, distance) if known and searched else "unknown"
            moved = state.hash != states[index - 1].hash
            yield ReadTurn(index - 1, previous, distance, change, moved)
        previous, known = distance, searched
