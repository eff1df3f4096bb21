"""The tables of a diagnosis that ask again: the policy in recorded states, and the teacher about failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pivotopd.columns import BOOL, DOUBLE, IDS, INT32, INT64, TEXT, TEXTS, column


@dataclass(frozen=True, slots=True)
class Intervention:
    """One replay of a failed episode, with or without a change (paper App. A)."""

    TABLE: ClassVar[str] = "interventions"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "updates behind the policy")
    policy: str = column(TEXT, "digest of the policy that finishes the episode")
    episode: str = column(TEXT, "id of the failed episode")
    task: str = column(TEXT, "id of its task")
    family: str = column(TEXT, "task type")
    intervention: str = column(TEXT, "none, resample, other_turn, at_pivot, or after_N for the next N turns")
    repeat: int = column(INT32, "number of the repeat, from 0")
    seed: int = column(INT64, "seed of the policy's responses")
    pivot_turn: int = column(INT32, "first pivotal turn of the failed episode, from 0")
    start_turn: int = column(INT32, "first turn that is not the recorded one")
    forced_turns: Sequence[int] = column(IDS, "turns at which the oracle acted")
    forced_actions: Sequence[str] = column(TEXTS, "what it did there")
    won: bool = column(BOOL, "the environment's own verdict")
    turns: int = column(INT32, "turns of the whole episode, the recorded ones included")
    termination: str = column(TEXT, "why it ended; see episodes")
    error: str | None = column(
        TEXT, "message of an environment error; such a replay counts nowhere", nullable=True
    )


@dataclass(frozen=True, slots=True)
class AgreementSample:
    """One reading of a failed episode by the teacher, against the oracle's first pivot (paper App. B)."""

    TABLE: ClassVar[str] = "agreement_samples"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "updates behind the policy that played")
    episode: str = column(TEXT, "id of the failed episode")
    family: str = column(TEXT, "task type")
    sample: int = column(INT32, "number of the reading, from 0")
    teacher: str = column(TEXT, "who read: kind and name")
    pivot_turn: int = column(INT32, "the oracle's first pivotal turn, from 0")
    turns: int = column(INT32, "turns of the episode")
    detected: Sequence[int] = column(IDS, "turns that the teacher holds for pivotal, ascending")
    unread: str | None = column(TEXT, "why there is no reading: counts as wrong", nullable=True)
    correct: bool = column(BOOL, "one of them lies within one turn of the oracle's first pivot")
    chance: float = column(DOUBLE, "probability that as many turns drawn at random would be correct")


@dataclass(frozen=True, slots=True)
class ActionProbability:
    """How likely a policy is to do one of two actions in one recorded context (paper App. A)."""

    TABLE: ClassVar[str] = "action_probabilities"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "updates behind the policy that is asked")
    policy: str = column(TEXT, "digest of that policy")
    episode: str = column(TEXT, "id of the failed episode whose context it is")
    family: str = column(TEXT, "task type")
    turn: int = column(INT32, "the oracle's first pivotal turn, from 0")
    mistake: str = column(TEXT, "what was done there")
    oracle_action: str | None = column(TEXT, "the oracle's preferred action there", nullable=True)
    samples: int = column(INT32, "responses sampled at the recorded prompt")
    temperature: float = column(DOUBLE, "sampling temperature")
    mistakes_drawn: int = column(INT32, "responses that commit to the mistake")
    oracle_drawn: int = column(INT32, "responses that commit to the oracle's preferred action")
    best_drawn: int = column(INT32, "responses that commit to any action on a shortest way")
    mistake_nats: float | None = column(
        DOUBLE,
        "log-probability of the mistake's tokens after the recorded thought; null: none was committed",
        nullable=True,
    )
    oracle_nats: float | None = column(
        DOUBLE, "the same of the oracle's preferred action, written in its place", nullable=True
    )
