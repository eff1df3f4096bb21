"""The ledger: what a piece of work used, as exact counts of one type, for every stage and every engine.

A count either follows from the work alone, or also from how it was done: batch sizes, caches, what the
process still held. The latter *varies*: it stands in the manifest, and stays out of the content digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

Group = Literal["environment", "engine", "learner", "teacher", "process"]
"""Who does the work that is counted."""


def _count(group: Group, meaning: str, *, varies: bool = False) -> int:
    """Return the field of a count, 0 by default."""
    return field(default=0, metadata={"group": group, "meaning": meaning, "varies": varies})


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was done. Sums and differences go field by field; each field's meaning stands beside it."""

    env_resets: int = _count("environment", "episodes started, replays included")
    env_steps: int = _count("environment", "actions sent, those of replays and experts included")
    restores: int = _count("environment", "states restored from a snapshot")
    replays: int = _count("environment", "states reached by playing recorded actions again")
    worker_restarts: int = _count(
        "environment", "processes of the environment that ended and were started again", varies=True
    )

    prompts: int = _count("engine", "prompts continued")
    prompt_tokens: int = _count("engine", "their tokens")
    cached_prompt_tokens: int = _count("engine", "of these, found in a prefix cache", varies=True)
    generated_tokens: int = _count("engine", "sampled tokens, end tokens included")
    idle_tokens: int = _count("engine", "positions of finished responses decoded beside others", varies=True)
    rounds: int = _count("engine", "batches of prompts that an engine was given", varies=True)
    scored_rows: int = _count("engine", "responses scored")
    scored_context_tokens: int = _count("engine", "tokens of the prompts that they were scored under")
    shared_context_tokens: int = _count(
        "engine", "of these, not computed again: prompts that begin alike share it", varies=True
    )
    scored_tokens: int = _count("engine", "response tokens scored")
    repeated_rows: int = _count(
        "engine", "of the scored responses, equal to another of their call: computed once", varies=True
    )
    repeated_tokens: int = _count("engine", "their tokens, prompts included", varies=True)
    padded_tokens: int = _count("engine", "padding computed in prefill and scoring", varies=True)

    training_input_tokens: int = _count("learner", "tokens of the rows trained on, prompts included")
    trained_tokens: int = _count("learner", "tokens with a loss")
    training_repeated_tokens: int = _count(
        "learner", "input tokens of rows equal to another of their mini-batch: computed once", varies=True
    )
    training_padding_tokens: int = _count("learner", "padding computed in training", varies=True)

    teacher_calls: int = _count("teacher", "requests that a language model answered", varies=True)
    teacher_cached: int = _count("teacher", "requests whose reply was already there", varies=True)
    teacher_retries: int = _count("teacher", "tries again", varies=True)
    teacher_failed: int = _count("teacher", "requests given up", varies=True)
    teacher_prompts_too_long: int = _count("teacher", "requests longer than the teacher reads")
    teacher_prompt_tokens: int = _count("teacher", "prompt tokens of the answered requests", varies=True)
    teacher_cached_prompt_tokens: int = _count("teacher", "of these, found in a prefix cache", varies=True)
    teacher_reply_tokens: int = _count("teacher", "tokens of the replies", varies=True)
    oracle_repeats: int = _count(
        "teacher", "answers of the oracle that were there for an equal state", varies=True
    )
    teacher_cost_millionths: int | None = field(
        default=None,
        metadata={
            "group": "teacher",
            "meaning": "cost in millionths of the currency's unit; only where prices are known",
            "varies": True,
        },
    )

    model_loads: int = _count("process", "checkpoints read into memory", varies=True)
    engine_starts: int = _count(
        "process", "engines started that generate, not models that only score", varies=True
    )
    learner_starts: int = _count("process", "learners started", varies=True)
    bytes_written: int = _count("process", "bytes of tables and files, without the manifest", varies=True)

    def __add__(self, other: Counts) -> Counts:
        """Return the sum; a cost that is unknown on one side is the other's."""
        return self._joined(other, lambda one, two: one + two)

    def __sub__(self, other: Counts) -> Counts:
        """Return what was added to an earlier state of the same counts."""
        return self._joined(other, lambda one, two: one - two)

    def _joined(self, other: Counts, join: Callable[[int, int], int]) -> Counts:
        found: dict[str, int] = {}
        for name in FIELDS:
            one, two = getattr(self, name), getattr(other, name)
            if one is not None or two is not None:
                found[name] = join(one or 0, two or 0)
        return Counts(**found)

    def listed(self) -> dict[str, int]:
        """Return the counts by name; an unknown cost is left out."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Counts:
        """Return the ledger's counts among a manifest's; those that it does not have are 0."""
        return cls(**{name: counts[name] for name in FIELDS if name in counts})


@dataclass(frozen=True, slots=True)
class CountField:
    """What is known of a field of :class:`Counts`.

    Attributes:
        group: Who does the work.
        meaning: What is counted.
        varies: It depends on batch sizes, caches or what the process still held.
    """

    group: Group
    meaning: str
    varies: bool


FIELDS: Final[Mapping[str, CountField]] = {one.name: CountField(**one.metadata) for one in fields(Counts)}
"""Name of a count to what is known of it, in the order of a manifest."""


def manifest_counts(own: Mapping[str, int], spent: Counts | None) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return a manifest's counts, and the names of those that vary.

    Args:
        own: What a stage alone counts, such as its rows and outcomes; they must follow from the work alone.
        spent: What it used; None where that is not told.

    Raises:
        ValueError: A name of its own is the ledger's.
    """
    if taken := sorted(FIELDS.keys() & own.keys()):
        raise ValueError(f"these names are the ledger's: {', '.join(taken)}")
    listed = {} if spent is None else spent.listed()
    return {**own, **listed}, tuple(name for name in listed if FIELDS[name].varies)
