"""The tables of a diagnosis: what the oracle reads in episodes, known mistakes, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pivotopd.columns import BOOL, DOUBLE, IDS, INT32, INT64, TEXT, column


@dataclass(frozen=True, slots=True)
class EpisodeReading:
    """What the oracle says about one episode as a whole (paper App. A)."""

    TABLE: ClassVar[str] = "episode_readings"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "updates behind the policy")
    episode: str = column(TEXT, "id of the episode")
    task: str = column(TEXT, "id of the task")
    family: str = column(TEXT, "task type")
    won: bool = column(BOOL, "the environment's own verdict")
    turns: int = column(INT32, "number of turns played")
    kind: str = column(
        TEXT,
        "won; or failed: after_pivot, no_pivot, or unjudged where a search was given up too early",
    )
    pivot_turn: int | None = column(
        INT32, "first turn, from 0, after which the shortest rest grew or became infinite", nullable=True
    )
    oracle_action: str | None = column(
        TEXT, "the oracle's preferred action there; it may use hidden objects", nullable=True
    )
    pivots: int = column(INT32, "number of pivotal turns")
    wasted_turns: int | None = column(INT32, "turns played after the first pivotal one", nullable=True)
    distance_at_start: int | None = column(
        INT32, "shortest number of turns at the start; null if unknown or unsolvable", nullable=True
    )


@dataclass(frozen=True, slots=True)
class TurnReading:
    """What the oracle says about one turn. It sees hidden objects, which the student has to look for."""

    TABLE: ClassVar[str] = "turn_readings"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "updates behind the policy")
    episode: str = column(TEXT, "id of the episode")
    turn: int = column(INT32, "index of the turn, from 0")
    action: str = column(TEXT, "what was sent to the environment")
    distance_before: int | None = column(
        INT32, "shortest remaining turns before it; null if unsolvable or unknown", nullable=True
    )
    distance_after: int | None = column(INT32, "the same after it", nullable=True)
    change: str = column(TEXT, "progress, neutral, regress, dead, or unknown where a search was given up")
    moved: bool = column(BOOL, "the action changed the environment's state")
    out_of_reach: bool = column(BOOL, "fewer turns were left before it than the shortest way needs")


@dataclass(frozen=True, slots=True)
class KnownMistake:
    """One pivotal mistake of a fixed set: every policy is replayed from the state after it."""

    TABLE: ClassVar[str] = "mistakes"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "run whose policy made it")
    iteration: int = column(INT32, "updates behind that policy")
    policy: str = column(TEXT, "digest of that policy")
    mistake: str = column(TEXT, "id of the mistake: its episode's id")
    task: str = column(TEXT, "id of the task")
    task_hash: str = column(TEXT, "hash of the task's content")
    family: str = column(TEXT, "task type")
    seed: int = column(INT64, "seed of the episode")
    turn: int = column(INT32, "index of the pivotal turn, from 0")
    action: str = column(TEXT, "the mistake")
    oracle_action: str | None = column(
        TEXT, "the oracle's preferred action instead; it may use hidden objects", nullable=True
    )
    distance_before: int = column(INT32, "shortest remaining turns before the mistake")
    distance_after: int | None = column(INT32, "the same after it; null: unsolvable", nullable=True)
    state_hash: str = column(TEXT, "hash of the environment's state after the mistake")
    prefix_hash: str = column(TEXT, "sha256 of the observations and actions up to the state after it")
    environment: str = column(TEXT, "name and version of engine and wording")
    split: str = column(TEXT, "split of the games")
    data_fingerprint: str = column(TEXT, "fingerprint of the split's games")
    max_turns: int = column(INT32, "turn limit of the episodes")


@dataclass(frozen=True, slots=True)
class Recovery:
    """How often one policy recovers from one known mistake (paper App. E.2)."""

    TABLE: ClassVar[str] = "recoveries"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "updates behind the policy")
    policy: str = column(TEXT, "digest of the policy that was replayed")
    mistake: str = column(TEXT, "id of the mistake")
    replays: int = column(INT32, "number of replays")
    won: int = column(INT32, "replays that completed the task")
    rate: float = column(DOUBLE, "won / replays")
    turns: Sequence[int] = column(IDS, "turns from the mistake to completion of each won replay, ascending")
    turns_left: int = column(INT32, "turns of the budget left after the mistake")
    optimal_turns: int | None = column(
        INT32, "shortest number of turns after the mistake; null: unsolvable", nullable=True
    )
    start_rate: float | None = column(
        DOUBLE, "the start policy's rate on this mistake; null where it is the start policy", nullable=True
    )
    change: str | None = column(
        TEXT, "improved, worsened or unchanged against the start policy", nullable=True
    )
