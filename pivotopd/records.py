"""The tables that stages exchange: one frozen dataclass and one explicit Arrow schema each.

Every field states its Arrow type and meaning once, in :func:`~pivotopd.columns.column`; the schema, the
writer and the checks are derived from it. A schema carries its name and version; a reader refuses another
version, a missing or an extra column, and a wrong type. Token ids are int32 and are the primary record: text
is derived from them, and text that is not valid UTF-8 is escaped and flagged, never the ids. The tables of a
diagnosis are declared in :mod:`pivotopd.records_diagnosis` and :mod:`pivotopd.records_probes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from pivotopd.columns import BOOL, BYTES, DOUBLE, IDS, INT32, INT64, NATS, TEXT, TEXTS, column
from pivotopd.errors import ArtifactError
from pivotopd.records_diagnosis import EpisodeReading, KnownMistake, Recovery, TurnReading
from pivotopd.records_probes import ActionProbability, AgreementSample, Intervention


@dataclass(frozen=True, slots=True)
class Episode:
    """One played episode, kept whatever its outcome."""

    TABLE: ClassVar[str] = "episodes"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    episode: str = column(TEXT, "id of the episode, unique in the run")
    task: str = column(TEXT, "id of the task")
    task_hash: str = column(TEXT, "hash of the task's content")
    family: str = column(TEXT, "task type")
    group: str = column(TEXT, "id of the group: episodes of one task from one start")
    sample: int = column(INT32, "index of the episode in its group")
    seed: int = column(INT64, "seed of the episode, made of (run seed, iteration, task, sample)")
    episode_return: float = column(DOUBLE, "plain sum of the step rewards, without penalties")
    won: bool = column(BOOL, "the environment's own verdict")
    score: float = column(DOUBLE, "the environment's dense score at the end")
    termination: str = column(TEXT, "why it ended: won, done, turn_limit, prompt_too_long, environment_error")
    error: str | None = column(TEXT, "message of an environment error", nullable=True)
    turns: int = column(INT32, "number of turns played")
    environment: str = column(TEXT, "name and version of the environment")
    data_fingerprint: str = column(TEXT, "fingerprint of the data behind the task")
    policy: str = column(TEXT, "digest of the checkpoint that played")


@dataclass(frozen=True, slots=True)
class Turn:
    """One training row: a prompt rebuilt from the history window, and one response.

    A recovery is a turn on a branch that leaves its episode after the pivotal turn: ``source`` is
    ``recovery``, ``turn`` is pivot + depth, and the prompt is the one without the hint.
    """

    TABLE: ClassVar[str] = "turns"
    VERSION: ClassVar[int] = 2

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    episode: str = column(TEXT, "id of the episode")
    group: str = column(TEXT, "id of the group")
    turn: int = column(INT32, "index of the turn in its episode, from 0; on a branch pivot turn + depth")
    source: str = column(TEXT, "rollout or recovery; forced: not the policy's own, in diagnosis only")
    seed: int = column(INT64, "seed of this response's random draws")
    prompt_ids: Sequence[int] = column(IDS, "token ids of the prompt, without any hint")
    shown_pairs: int = column(INT32, "earlier observation/action pairs in the prompt, the latest ones")
    response_ids: Sequence[int] = column(IDS, "sampled token ids, with the end token where it was sampled")
    behaviour_logprobs_nats: Sequence[float] = column(
        NATS, "log-probability of each response token under the policy and prompt that sampled it"
    )
    temperature: float = column(DOUBLE, "sampling temperature; log-probabilities are at this temperature")
    finish_reason: str = column(TEXT, "stop; length: the response was cut; forced: there is none")
    instruction: str = column(TEXT, "the task as the student was told it")
    observation: str = column(TEXT, "what the student saw before the response")
    admissible: Sequence[str] | None = column(TEXTS, "admissible actions before the response", nullable=True)
    response_text: str = column(TEXT, "decoded response")
    text_escaped: bool = column(BOOL, "the response was not valid UTF-8 and is shown escaped")
    action: str = column(TEXT, "what was sent to the environment")
    committed: bool = column(BOOL, "the response holds an action in the required form")
    valid: bool = column(BOOL, "the response obeys the reply rules")
    reward: float = column(DOUBLE, "reward of the step, before penalties")
    state_hash: str = column(TEXT, "hash of the environment's state before the action")
    snapshot: bytes | None = column(
        BYTES, "the environment's state before the action, where it can be stored", nullable=True
    )
    next_observation: str | None = column(
        TEXT, "what the action was answered; null if not executed", nullable=True
    )
    pivot_turn: int | None = column(INT32, "recovery: the pivotal turn that the branch leaves", nullable=True)
    depth: int | None = column(INT32, "recovery: 1 is the turn right after the pivotal turn", nullable=True)
    gold_action: str | None = column(TEXT, "recovery: the action named in the hint", nullable=True)
    hinted_prompt_ids: Sequence[int] | None = column(
        IDS, "recovery: the prompt that sampled the response, with the hint", nullable=True
    )


@dataclass(frozen=True, slots=True)
class Label:
    """One candidate turn that the teacher named in a finished episode."""

    TABLE: ClassVar[str] = "labels"
    VERSION: ClassVar[int] = 2

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    episode: str = column(TEXT, "id of the episode")
    turn: int = column(INT32, "index of the candidate turn")
    gold_written: str = column(TEXT, "gold action as the teacher wrote it")
    gold_action: str | None = column(
        TEXT, "gold action resolved to an admissible one; null: unresolved", nullable=True
    )
    accepted_actions: Sequence[str] = column(
        TEXTS, "every action that counts as agreement, the gold one included"
    )
    student_action: str = column(TEXT, "what the student did at this turn")
    pivotal: bool = column(BOOL, "the student's action disagrees with the gold one")
    reason: str = column(TEXT, "pivotal, agrees, or unresolved")
    distance_before: int | None = column(
        INT32, "oracle: shortest remaining turns before; null if unknown", nullable=True
    )
    distance_after: int | None = column(INT32, "oracle: the same after; null if unsolvable", nullable=True)
    teacher: str = column(TEXT, "who labelled: kind and name")


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the teacher said about one episode as a whole; every episode that was given to it has a row."""

    TABLE: ClassVar[str] = "lessons"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    episode: str = column(TEXT, "id of the episode")
    lesson: str | None = column(TEXT, "the teacher's lesson for the episode", nullable=True)
    summary: str | None = column(TEXT, "its summary of the episode", nullable=True)
    step_turns: Sequence[int] = column(IDS, "turns that it wrote a lesson for")
    step_lessons: Sequence[str] = column(TEXTS, "those lessons, in the same order; for reading only")
    unread: str | None = column(TEXT, "why there is no signal; null: the episode was read", nullable=True)
    teacher: str = column(TEXT, "who labelled: kind and name")
    prompt_hash: str | None = column(TEXT, "sha256 of the teacher's prompt", nullable=True)
    raw_reply: str | None = column(TEXT, "the teacher's last reply, unchanged", nullable=True)


@dataclass(frozen=True, slots=True)
class Chain:
    """One recovery chain: what became of one pivotal turn."""

    TABLE: ClassVar[str] = "chains"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    episode: str = column(TEXT, "id of the episode")
    pivot_turn: int = column(INT32, "the pivotal turn it follows")
    accepted: int = column(INT32, "number of recovery turns kept")
    stopped: str = column(
        TEXT,
        "why it ended: depth, episode_over, turn_limit, over_cap, unresolved, no_action, leak, "
        "privileged_marker, truncated_response, prompt_too_long, replay_divergence, environment_error",
    )
    detail: str | None = column(TEXT, "more about the reason", nullable=True)


@dataclass(frozen=True, slots=True)
class Signal:
    """Log-probabilities of one row's response, by prompt; of the frozen student unless said."""

    TABLE: ClassVar[str] = "signals"
    VERSION: ClassVar[int] = 2

    episode: str = column(TEXT, "id of the episode")
    turn: int = column(INT32, "index of the turn")
    source: str = column(TEXT, "rollout or recovery")
    pivot_turn: int | None = column(INT32, "recovery: the pivotal turn", nullable=True)
    plain_nats: Sequence[float] = column(NATS, "under the prompt without hint: PPO's old log-probability")
    reference_nats: Sequence[float] = column(NATS, "under the initial policy, without hint")
    hinted_nats: Sequence[float] | None = column(
        NATS, "under the prompt with the gold (rollout) or recovery (recovery) hint", nullable=True
    )
    lesson_nats: Sequence[float] | None = column(NATS, "under the prompt with the lesson", nullable=True)
    skill_nats: Sequence[float] | None = column(NATS, "under the prompt with a skill", nullable=True)
    peer_nats: Sequence[float] | None = column(
        NATS, "under the prompt with a successful peer's actions", nullable=True
    )
    teacher_nats: Sequence[float] | None = column(NATS, "of a larger model", nullable=True)
    action_mask: Sequence[int] | None = column(
        IDS, "1 where the token is part of the action, 0 elsewhere; only for methods that ask", nullable=True
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    """What the frozen student held likely at a row's tokens under a privileged text; where a method asks."""

    TABLE: ClassVar[str] = "distributions"
    VERSION: ClassVar[int] = 1

    episode: str = column(TEXT, "id of the episode")
    turn: int = column(INT32, "index of the turn")
    source: str = column(TEXT, "rollout or recovery")
    pivot_turn: int | None = column(INT32, "recovery: the pivotal turn", nullable=True)
    text: str = column(TEXT, "what the prompt held: hint, lesson or skill")
    width: int = column(INT32, "ids kept of each response token (K)")
    ids: Sequence[int] = column(IDS, "token by token the K likeliest ids, the likeliest first")
    nats: Sequence[float] = column(NATS, "their log-probabilities over the whole vocabulary")


@dataclass(frozen=True, slots=True)
class Advantage:
    """Per-token advantage of one row, and its parts."""

    TABLE: ClassVar[str] = "advantages"
    VERSION: ClassVar[int] = 1

    episode: str = column(TEXT, "id of the episode")
    turn: int = column(INT32, "index of the turn")
    source: str = column(TEXT, "rollout or recovery")
    pivot_turn: int | None = column(INT32, "recovery: the pivotal turn", nullable=True)
    total: Sequence[float] = column(NATS, "what enters PPO, one value a response token")
    outcome: float = column(DOUBLE, "group-relative part, equal for all tokens")
    prevention: Sequence[float] = column(NATS, "weighted gold-hint part; empty where absent")
    recovery: Sequence[float] = column(NATS, "weighted recovery-hint part; empty where absent")
    lesson: Sequence[float] = column(NATS, "weighted lesson part; empty where absent")
    mask: Sequence[int] = column(IDS, "1 where the token trains, 0 where it is dropped")


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step."""

    TABLE: ClassVar[str] = "updates"
    VERSION: ClassVar[int] = 2

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    step: int = column(INT32, "optimizer step inside the update, from 0")
    loss: float = column(DOUBLE, "whole loss")
    policy_loss: float = column(DOUBLE, "clipped surrogate")
    auxiliary_loss: float = column(DOUBLE, "the method's loss beside PPO, weighted; 0 without one")
    kl_nats: float = column(DOUBLE, "low-variance KL to the initial policy, token mean")
    clip_fraction: float = column(DOUBLE, "share of tokens whose ratio was clipped")
    ratio_mean: float = column(DOUBLE, "mean PPO ratio")
    gradient_norm: float = column(DOUBLE, "global norm before clipping")
    rows: int = column(INT32, "rows of the mini-batch")
    recovery_rows: int = column(INT32, "recovery rows among them")
    tokens: int = column(INT64, "response tokens that trained: the denominator of the token mean")
    padded_tokens: int = column(INT64, "padding positions that were computed")
    dropped_tokens: int = column(INT64, "tokens dropped as truncated or not finite")
    skipped: bool = column(BOOL, "the step was skipped: its gradient was not finite")


@dataclass(frozen=True, slots=True)
class Skill:
    """One entry of a run's skill bank, distilled from an episode of the start policy."""

    TABLE: ClassVar[str] = "skills"
    VERSION: ClassVar[int] = 1

    skill: str = column(TEXT, "id of the skill, unique in the bank")
    family: str = column(TEXT, "task type that it is for")
    text: str = column(TEXT, "the skill, one line")
    won: bool = column(BOOL, "its episode was won: the skill says what to do, else what to avoid")
    episode: str = column(TEXT, "id of the episode that it comes from")
    teacher: str = column(TEXT, "who distilled it: kind and name")


@dataclass(frozen=True, slots=True)
class SkillUse:
    """How often a skill was retrieved by UCB, and what came of it, up to and with an iteration."""

    TABLE: ClassVar[str] = "skill_uses"
    VERSION: ClassVar[int] = 1

    skill: str = column(TEXT, "id of the skill")
    uses: int = column(INT64, "episodes for which it was retrieved (n)")
    reward_sum: float = column(DOUBLE, "sum of their rewards: 1 for a won episode, else 0")


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of an evaluation: a policy goes on alone after a recorded mistake of the start policy."""

    TABLE: ClassVar[str] = "replays"
    VERSION: ClassVar[int] = 1

    run: str = column(TEXT, "name of the run")
    iteration: int = column(INT32, "training iteration, from 0")
    mistake: str = column(TEXT, "id of the mistake: the start policy's episode that it was made in")
    task: str = column(TEXT, "id of the task")
    family: str = column(TEXT, "task type")
    pivot_turn: int = column(INT32, "the pivotal turn; the replay goes on after it")
    state_hash: str = column(TEXT, "hash of the state after the mistake, where the policy goes on")
    distance_after: int | None = column(
        INT32, "oracle: shortest remaining turns there; null if unsolvable", nullable=True
    )
    replay: int = column(INT32, "index of the replay, from 0")
    seed: int = column(INT64, "seed of the replay")
    won: bool = column(BOOL, "the task was completed: recovered")
    turns: int = column(INT32, "turns played after the mistake")
    termination: str = column(TEXT, "why it ended, as in episodes")
    policy: str = column(TEXT, "digest of the checkpoint that played")


Record = (
    Episode
    | Turn
    | Label
    | Lesson
    | Chain
    | Signal
    | Distribution
    | Advantage
    | Update
    | Skill
    | SkillUse
    | Replay
    | EpisodeReading
    | TurnReading
    | KnownMistake
    | Recovery
    | Intervention
    | AgreementSample
    | ActionProbability
)
R = TypeVar(
    "R",
    Episode,
    Turn,
    Label,
    Lesson,
    Chain,
    Signal,
    Distribution,
    Advantage,
    Update,
    Skill,
    SkillUse,
    Replay,
    EpisodeReading,
    TurnReading,
    KnownMistake,
    Recovery,
    Intervention,
    AgreementSample,
    ActionProbability,
)


def schema_of(record: type[Any]) -> pa.Schema:
    """Return a record's Arrow schema, with the table's name and version as metadata."""
    fields = [
        pa.field(
            item.name,
            item.metadata["arrow"],
            nullable=item.metadata["nullable"],
            metadata={"doc": item.metadata["doc"]},
        )
        for item in dataclasses.fields(record)
    ]
    return pa.schema(fields, metadata={"table": record.TABLE, "version": str(record.VERSION)})


def to_table(record: type[R], rows: Iterable[R]) -> pa.Table:
    """Build the Arrow table of records; columns that do not fit the schema raise ArtifactError."""
    schema = schema_of(record)
    listed = list(rows)
    columns: list[pa.Array] = []
    for item in schema:
        try:
            values = pa.array([getattr(row, item.name) for row in listed], type=item.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ArtifactError(
                f"column {item.name!r} of table {record.TABLE} does not take a value: {error}",
                mend="this is a defect of the stage that made the row; please report it",
            ) from error
        if not item.nullable and values.null_count:
            raise ArtifactError(
                f"column {item.name!r} of table {record.TABLE} holds {values.null_count} nulls"
            )
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=schema)


def check_schema(record: type[Any], schema: pa.Schema, where: str) -> None:
    """Refuse a schema that is not exactly this record's.

    Raises:
        ArtifactError: Another table or version, a missing or extra column, or a wrong type.
    """
    metadata = {
        key.decode(): value.decode()
        for key, value in (schema.metadata or {}).items()
        if key != b"ARROW:schema"
    }
    expected = schema_of(record)
    if metadata.get("table") != record.TABLE:
        raise ArtifactError(f"expected table {record.TABLE!r}, found {metadata.get('table')!r}", where=where)
    if metadata.get("version") != str(record.VERSION):
        raise ArtifactError(
            f"table {record.TABLE} has schema version {metadata.get('version')}, "
            f"this program reads {record.VERSION}",
            where=where,
            mend="use the pivotopd version that wrote it, or rerun the stage with this one",
        )
    found, wanted = set(schema.names), set(expected.names)
    if found != wanted:
        raise ArtifactError(
            f"table {record.TABLE} has other columns: "
            f"missing {sorted(wanted - found)}, extra {sorted(found - wanted)}",
            where=where,
            mend="rerun the stage that wrote it",
        )
    for item in expected:
        if schema.field(item.name).type != item.type:
            raise ArtifactError(
                f"column {item.name!r} of table {record.TABLE} "
                f"is {schema.field(item.name).type}, expected {item.type}",
                where=where,
                mend="rerun the stage that wrote it",
            )


def from_table(record: type[R], table: pa.Table, where: str) -> list[R]:
    """Read records from a table, in its order, after :func:`check_schema` and a null check."""
    check_schema(record, table.schema, where)
    for item in schema_of(record):
        if not item.nullable and table.column(item.name).null_count:
            raise ArtifactError(f"column {item.name!r} of table {record.TABLE} holds nulls", where=where)
    columns = [table.column(item.name).to_pylist() for item in dataclasses.fields(record)]
    return [record(*values) for values in zip(*columns, strict=True)]
