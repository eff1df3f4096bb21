"""What a teacher does: read finished episodes and name gold actions; name the next action of a recovery.

A teacher never gives log-probabilities. What it writes is resolved to an action and tested for disagreement
by :mod:`pivotopd.teacher.pivots`, the same way for every teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pivotopd.environments.base import PlayedEpisode, PlayedTurn, Task, View
from pivotopd.ledger import Counts
from pivotopd.records import Episode, Turn


@dataclass(frozen=True, slots=True)
class Transcript:
    """A finished episode, as a teacher gets it."""

    task: Task
    episode: Episode
    turns: Sequence[Turn]


def told(transcript: Transcript) -> PlayedEpisode:
    """Return an episode with at least one turn as prompts and distillers read it."""
    turns = transcript.turns
    return PlayedEpisode(
        instruction=turns[0].instruction,
        won=transcript.episode.won,
        termination=transcript.episode.termination,
        turns=tuple(PlayedTurn(turn.observation, turn.action, turn.committed) for turn in turns),
        last_observation=turns[-1].next_observation,
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A turn at which the teacher names a gold action.

    Attributes:
        turn: Index of the turn.
        gold_written: The action as the teacher wrote it.
        gold_action: The same, resolved to an action of the environment; None if it fits none.
        accepted: Further actions that count as agreement.
        distance_before: Shortest remaining turns before the student's action, where the teacher knows it.
        distance_after: The same after it; None also when unsolvable.
    """

    turn: int
    gold_written: str
    gold_action: str | None
    accepted: tuple[str, ...] = ()
    distance_before: int | None = None
    distance_after: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a teacher says about one episode.

    Attributes:
        candidates: Turns that it names, in its order.
        lesson: Its lesson for the episode.
        prompt_hash: sha256 of its prompt.
        raw_reply: Its last reply, unchanged.
        summary: Its summary of the episode.
        step_lessons: (turn, sentence) pairs; for reading only.
        unread: Why there is no signal; None where the episode was read.
    """

    candidates: tuple[Candidate, ...]
    lesson: str | None = None
    prompt_hash: str | None = None
    raw_reply: str | None = None
    summary: str | None = None
    step_lessons: tuple[tuple[int, str], ...] = ()
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A request for the single best next action in a state after a pivotal turn.

    Attributes:
        task: The task.
        view: What the student sees there.
        snapshot: The environment's state, which only the oracle may read.
        state_hash: The state's hash, by which an equal one is known again; None where there is none.
    """

    task: Task
    view: View
    snapshot: bytes | None
    state_hash: str | None = None


class Teacher(Protocol):
    """A teacher."""

    name: str

    @property
    def spent(self) -> Counts:
        """What it used so far: calls, tokens, their cost."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """What became of its work so far, in counts of its own; equal whenever it said the same."""
        ...

    def read(self, transcripts: Sequence[Transcript], sample: int = 0) -> list[Reading]:
        """Return one reading an episode, in order.

        Args:
            transcripts: The episodes.
            sample: Number of the reading: a teacher that samples draws another for another number.
        """
        ...

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        """Return one reading an episode, in order: its lesson is the episode's skill, written in hindsight.

        Its step lessons are the skills of single turns; it names no candidates.
        """
        ...

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        """Return the resolved next action of each query, or None where none can be named."""
        ...

    def distil(self, transcripts: Sequence[Transcript]) -> list[str | None]:
        """Return one skill an episode, on one line, or None where there is none."""
        ...
