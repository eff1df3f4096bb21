"""The oracle as a teacher: exact, for laptops, tests and ablations.

It takes as candidates the turns after which the shortest remaining number of turns grew or became infinite
(a pivotal mistake in the paper's sense, section 3.1), and names a best next action for each. ``informed``
restricts that action to what the student's own prompt shows, so that the student could have known it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pivotopd.environments.base import Environment, TaskOracle, View
from pivotopd.environments.replay import reach
from pivotopd.errors import ConfigError, EnvironmentFault, SearchLimit
from pivotopd.ledger import Counts
from pivotopd.records import Turn
from pivotopd.teacher.base import Candidate, Query, Reading, Transcript, told


@dataclass
class OracleTeacher:
    """Labels episodes by exact search.

    Args:
        environment: Gives the oracle of each task.
        informed: Name only actions that follow from what the student has seen.
        max_candidates: m, most candidates an episode.
    """

    environment: Environment
    informed: bool
    max_candidates: int
    name: str = field(init=False)
    searches: int = 0
    search_limits: int = 0
    unreadable: int = 0

    def __post_init__(self) -> None:
        """Name the teacher by its kind."""
        self.name = "oracle (informed)" if self.informed else "oracle"

    @property
    def spent(self) -> Counts:
        """Nothing: its searches are its own counts."""
        return Counts()

    @property
    def counts(self) -> dict[str, int]:
        """Searches asked for, and how many were given up."""
        return {
            "oracle_searches": self.searches,
            "oracle_searches_given_up": self.search_limits,
            "episodes_unreadable": self.unreadable,
        }

    def read(
        self,
        transcripts: Sequence[Transcript],
        sample: int = 0,  # noqa: ARG002 - it always says the same
    ) -> list[Reading]:
        """Return one reading an episode.

        A turn whose search was given up is no candidate, and an episode whose last state cannot be reached
        again has no reading; both are counted.
        """
        readings = []
        for transcript in transcripts:
            try:
                readings.append(self._read(transcript))
            except EnvironmentFault as fault:
                self.unreadable += 1
                readings.append(Reading((), unread=str(fault)))
        return readings

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        """Return the best next action of each query."""
        return [self._next(query) for query in queries]

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        """Return skills by fixed rules: the environment's for the episode, a best action at each mistake."""
        skills = self.distil(transcripts)
        return [
            replace(
                reading,
                candidates=(),
                lesson=skill,
                step_lessons=tuple(
                    (one.turn, one.gold_action) for one in reading.candidates if one.gold_action
                ),
            )
            for reading, skill in zip(self.read(transcripts), skills, strict=True)
        ]

    def distil(self, transcripts: Sequence[Transcript]) -> list[str | None]:
        """Return the skill that the environment's fixed rules find in each episode."""
        return [self.environment.distil(told(one)) if one.turns else None for one in transcripts]

    def _next(self, query: Query) -> str | None:
        state = _stored(query.snapshot)
        best = self._best(self.environment.oracle(query.task), state, query.view)
        return best[0] if best else None

    def _best(self, oracle: TaskOracle, snapshot: bytes, view: View) -> tuple[str, ...]:
        self.searches += 1
        try:
            return oracle.best_actions(snapshot, view if self.informed else None)
        except SearchLimit:
            self.search_limits += 1
            return ()

    def _read(self, transcript: Transcript) -> Reading:
        oracle = self.environment.oracle(transcript.task)
        states = self._states(transcript)
        candidates: list[Candidate] = []
        for turn, before, after in zip(transcript.turns, states, states[1:], strict=False):
            if len(candidates) >= self.max_candidates:
                break
            candidate = self._candidate(oracle, transcript.turns, turn, before, after)
            if candidate is not None:
                candidates.append(candidate)
        return Reading(tuple(candidates))

    def _candidate(
        self, oracle: TaskOracle, turns: Sequence[Turn], turn: Turn, before: bytes, after: bytes
    ) -> Candidate | None:
        self.searches += 2
        try:
            shortest, remaining = oracle.distance(before), oracle.distance(after)
        except SearchLimit:
            self.search_limits += 1
            return None
        if shortest is None or (remaining is not None and remaining <= shortest):
            return None
        best = self._best(oracle, before, view_of(turns, turn.turn))
        if not best:
            return Candidate(turn.turn, "", None, (), shortest, remaining)
        return Candidate(turn.turn, best[0], best[0], best[1:], shortest, remaining)

    def _states(self, transcript: Transcript) -> list[bytes]:
        """Return the state before each turn and after the last one; replay where the rows hold none."""
        env = self.environment.open()
        try:
            stored = [turn.snapshot for turn in transcript.turns]
            if None in stored:
                env.reset(transcript.task, transcript.episode.seed)
                stored = []
                for turn in transcript.turns:
                    stored.append(env.dump())
                    env.step(turn.action)
            elif stored:
                last = transcript.turns[-1]
                reach(env, transcript.task, transcript.episode.seed, transcript.turns, last.turn, "snapshot")
                env.step(last.action)
            return [_stored(state) for state in (*stored, env.dump())] if stored else []
        finally:
            env.close()


def _stored(state: bytes | None) -> bytes:
    if state is None:
        raise ConfigError(
            "the oracle teacher needs the environment's state, and this environment stores none",
            where="teacher.kind",
            mend="choose another teacher",
        )
    return state


def view_of(turns: Sequence[Turn], turn: int) -> View:
    """Return what the student's prompt showed before a recorded turn."""
    now = turns[turn]
    shown = turns[turn - now.shown_pairs : turn]
    return View(
        instruction=now.instruction,
        history=tuple((past.observation, past.action) for past in shown),
        turn=turn,
        observation=now.observation,
        admissible=tuple(now.admissible) if now.admissible is not None else None,
    )
