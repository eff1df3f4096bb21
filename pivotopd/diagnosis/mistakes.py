"""Known mistakes: the first oracle-pivotal turns of failed episodes, as a fixed set that any policy replays.

Paper App. E.2; see docs/diagnosis.md. A set names the games, engine and wording that it was made with, and is
refused where they are others: its states would not be the recorded ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pivotopd.diagnosis.pivots import PIVOTAL, Reading, read_turns, replayed
from pivotopd.environments.base import Environment, Task
from pivotopd.errors import ArtifactError, EnvironmentFault
from pivotopd.evaluation import at_equal_steps
from pivotopd.manifest import canonical_json
from pivotopd.records import Episode, Turn
from pivotopd.records_diagnosis import KnownMistake
from pivotopd.teacher.base import Transcript


@dataclass(frozen=True, slots=True)
class Mistake:
    """A recorded pivotal mistake: the first turn of an episode after which the distance grew.

    Attributes:
        transcript: The episode, at least up to the turn after the mistake.
        turn: Index of the pivotal turn.
        distance_after: Shortest remaining turns after it; None when it made the task unsolvable.
    """

    transcript: Transcript
    turn: int
    distance_after: int | None


@dataclass(frozen=True, slots=True)
class Basis:
    """What a set of mistakes belongs to.

    Attributes:
        environment: Name and version of engine and wording.
        split: Split of the games.
        data_fingerprint: Fingerprint of the split's games.
        max_turns: Turn limit of an episode.
    """

    environment: str
    split: str
    data_fingerprint: str
    max_turns: int

    @property
    def fingerprint(self) -> str:
        """Hash of everything but the split's name."""
        parts = [self.environment, self.data_fingerprint, self.max_turns]
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def basis_of(environment: Environment, split: str, max_turns: int) -> Basis:
    """Return what mistakes that are made now belong to."""
    spec = environment.spec
    return Basis(f"{spec.name} {spec.version}", split, environment.data_fingerprint(split), max_turns)


def find_mistakes(
    environment: Environment, transcripts: Iterable[Transcript], *, limit: int, also_won: bool = False
) -> tuple[list[Mistake], int]:
    """Return the first oracle-pivotal turn of each failed episode, at equal steps where they are too many.

    A mistake on an episode's last turn is left out: nothing can follow it.

    Args:
        environment: Gives the oracles.
        transcripts: The episodes.
        limit: Most mistakes.
        also_won: Look at won episodes too.

    Returns:
        The mistakes, by episode id, and the number of episodes that the oracle could not judge.
    """
    found: list[Mistake] = []
    given_up = 0
    for transcript in sorted(transcripts, key=lambda one: one.episode.episode):
        if transcript.episode.won and not also_won:
            continue
        try:
            mistake, judged = _first_mistake(environment, transcript)
        except EnvironmentFault:
            given_up += 1
            continue
        given_up += not judged
        if mistake is not None:
            found.append(mistake)
    return at_equal_steps(found, limit), given_up


def _first_mistake(environment: Environment, transcript: Transcript) -> tuple[Mistake | None, bool]:
    """Return the first pivotal turn after which the episode went on, and whether no search was given up."""
    oracle = environment.oracle(transcript.task)
    for turn in read_turns(oracle, replayed(environment, transcript)):
        if turn.change == "unknown":
            return None, False
        if turn.change in PIVOTAL:
            last = turn.turn + 1 == len(transcript.turns)
            return (None if last else Mistake(transcript, turn.turn, turn.after)), True
    return None, True


def mistake_of(reading: Reading) -> Mistake | None:
    """Return a failed episode's mistake, or None without one that a turn follows."""
    if reading.kind != "after_pivot" or reading.pivot is None or not reading.wasted:
        return None
    return Mistake(reading.transcript, reading.pivot, reading.turns[reading.pivot].after)


def recorded(mistake: Mistake, environment: Environment, basis: Basis) -> KnownMistake:
    """Return a mistake as a row of a set."""
    transcript, turn = mistake.transcript, mistake.turn
    episode, turns = transcript.episode, transcript.turns
    state = turns[turn].snapshot
    oracle = environment.oracle(transcript.task)
    states = replayed(environment, transcript) if state is None else None
    before = states[turn].state if states else state
    assert before is not None, "a replay gives every state"  # noqa: S101
    distance = oracle.distance(before)
    assert distance is not None, "a mistake lengthens a finite way"  # noqa: S101
    best = oracle.best_actions(before, None)
    return KnownMistake(
        run=episode.run,
        iteration=episode.iteration,
        policy=episode.policy,
        mistake=episode.episode,
        task=episode.task,
        task_hash=episode.task_hash,
        family=episode.family,
        seed=episode.seed,
        turn=turn,
        action=turns[turn].action,
        oracle_action=best[0] if best else None,
        distance_before=distance,
        distance_after=mistake.distance_after,
        state_hash=turns[turn + 1].state_hash,
        prefix_hash=prefix_hash(turns, turn),
        environment=basis.environment,
        split=basis.split,
        data_fingerprint=basis.data_fingerprint,
        max_turns=basis.max_turns,
    )


def prefix_hash(turns: Sequence[Turn], turn: int) -> str:
    """Return the hash of all observations and actions up to the state after a turn."""
    pairs = [[one.observation, one.action] for one in turns[: turn + 1]]
    return hashlib.sha256(canonical_json([*pairs, turns[turn + 1].observation]).encode()).hexdigest()


def check_basis(known: Sequence[KnownMistake], basis: Basis, where: str) -> None:
    """Refuse a set that was made with other games, wording, engine version or turn limit.

    Raises:
        ArtifactError: Names both fingerprints and what differs.
    """
    for one in known:
        made = Basis(one.environment, one.split, one.data_fingerprint, one.max_turns)
        if made.fingerprint == basis.fingerprint:
            continue
        pairs = {
            "engine and wording": (made.environment, basis.environment),
            "games": (made.data_fingerprint[:12], basis.data_fingerprint[:12]),
            "turn limit": (made.max_turns, basis.max_turns),
        }
        differ = "; ".join(
            f"{name}: {then} then, {now} now" for name, (then, now) in pairs.items() if then != now
        )
        raise ArtifactError(
            f"the set of mistakes has fingerprint {made.fingerprint}, this diagnosis {basis.fingerprint} "
            f"({differ})",
            where=where,
            mend="give a set that was made with the same games, wording, engine version and turn limit",
        )


def load_mistakes(
    known: Sequence[KnownMistake],
    episodes: Sequence[Episode],
    turns: Sequence[Turn],
    tasks: Sequence[Task],
    where: str,
) -> list[Mistake]:
    """Return the mistakes of a stored set, by id.

    Args:
        known: The set's rows.
        episodes: Their episodes.
        turns: Their turns, up to the one after the mistake.
        tasks: The tasks of the present environment.
        where: Address of the set.

    Raises:
        ArtifactError: A task is unknown or has other content, or turns are missing or are not the set's.
    """
    by_task = {task.id: task for task in tasks}
    by_episode = {episode.episode: episode for episode in episodes}
    by_turn: dict[str, list[Turn]] = {}
    for turn in sorted(turns, key=lambda one: (one.episode, one.turn)):
        by_turn.setdefault(turn.episode, []).append(turn)
    found = []
    for one in sorted(known, key=lambda row: row.mistake):
        task, episode = by_task.get(one.task), by_episode.get(one.mistake)
        prefix = by_turn.get(one.mistake, [])
        if task is None or task.content_hash != one.task_hash:
            raise ArtifactError(
                f"task {one.task} of the mistakes does not exist with the same content",
                where=where,
                mend="give a set that was made with the same games",
            )
        if episode is None or len(prefix) < one.turn + 2 or prefix_hash(prefix, one.turn) != one.prefix_hash:
            raise ArtifactError(
                f"the turns of mistake {one.mistake} are missing or are not those it was recorded with",
                where=where,
                mend="delete the artifact's folder and make the set again",
            )
        found.append(Mistake(Transcript(task, episode, prefix), one.turn, one.distance_after))
    return found
