"""The oracle as a teacher: exact, for laptops, tests and ablations.

It takes as candidates the turns after which the shortest remaining number of turns grew or became infinite
(a pivotal mistake in the paper's sense, section 3.1), and names a best next action for each. ``informed``
restricts that action to what the student's own prompt shows, so that the student could have known it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, cast

from pivotopd.environments.ahead import begin_step
from pivotopd.environments.base import Env, Environment, Task, View
from pivotopd.environments.replay import Passed, begin_reach
from pivotopd.errors import ConfigError, EnvironmentFault, SearchLimit
from pivotopd.ledger import Counts
from pivotopd.records import Turn
from pivotopd.teacher.base import Candidate, Query, Reading, Transcript, told

_Answer = TypeVar("_Answer")


@dataclass
class OracleTeacher:
    """Labels episodes by exact search; a state that was asked about before is not searched again.

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
    repeats: int = 0
    _answers: dict[Hashable, object] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Name the teacher by its kind."""
        self.name = "oracle (informed)" if self.informed else "oracle"

    @property
    def spent(self) -> Counts:
        """Its searches are its own counts; here is how many of them were there already."""
        return Counts(oracle_repeats=self.repeats)

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
        begun = [self._begin_states(transcript) for transcript in transcripts]
        for transcript, states in zip(transcripts, begun, strict=True):
            try:
                readings.append(self._read(transcript, states()))
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
        best = self._best(query.task, Passed(_stored(query.snapshot), query.state_hash or ""), query.view)
        return best[0] if best else None

    def _best(self, task: Task, state: Passed, view: View) -> tuple[str, ...]:
        seen = _seen(view) if self.informed else None
        self.searches += 1
        try:
            return self._once(
                (task, state.hash, "best", seen),
                lambda: self.environment.oracle(task).best_actions(
                    state.state, view if self.informed else None
                ),
            )
        except SearchLimit:
            self.search_limits += 1
            return ()

    def _distance(self, task: Task, state: Passed) -> int | None:
        return self._once(
            (task, state.hash, "distance"), lambda: self.environment.oracle(task).distance(state.state)
        )

    def _once(self, asked: tuple[Task, str, *tuple[Hashable, ...]], search: Callable[[], _Answer]) -> _Answer:
        """Return what a search finds for a task, a state's hash and a question; search at most once.

        Raises:
            SearchLimit: The search was given up, now or before.
        """
        if not asked[1]:
            return search()
        if asked in self._answers:
            self.repeats += 1
        else:
            try:
                self._answers[asked] = search()
            except SearchLimit as limit:
                self._answers[asked] = limit
        answer = self._answers[asked]
        if isinstance(answer, SearchLimit):
            raise answer
        return cast("_Answer", answer)

    def _read(self, transcript: Transcript, states: Sequence[Passed]) -> Reading:
        candidates: list[Candidate] = []
        for turn, before, after in zip(transcript.turns, states, states[1:], strict=False):
            if len(candidates) >= self.max_candidates:
                break
            candidate = self._candidate(transcript, turn, before, after)
            if candidate is not None:
                candidates.append(candidate)
        return Reading(tuple(candidates))

    def _candidate(
        self, transcript: Transcript, turn: Turn, before: Passed, after: Passed
    ) -> Candidate | None:
        task = transcript.task
        self.searches += 2
        try:
            shortest, remaining = self._distance(task, before), self._distance(task, after)
        except SearchLimit:
            self.search_limits += 1
            return None
        if shortest is None or (remaining is not None and remaining <= shortest):
            return None
        best = self._best(task, before, view_of(transcript.turns, turn.turn))
        if not best:
            return Candidate(turn.turn, "", None, (), shortest, remaining)
        return Candidate(turn.turn, best[0], best[0], best[1:], shortest, remaining)

    def _begin_states(self, transcript: Transcript) -> Callable[[], list[Passed]]:
        """Begin to find the state before each turn and after the last one; replay where no row holds it."""
        turns, task, seed = transcript.turns, transcript.task, transcript.episode.seed
        if not turns:
            return list
        env = self.environment.open()
        if any(turn.snapshot is None for turn in turns):
            return partial(_replayed, env, transcript)
        reaching = begin_reach(env, task, seed, turns, turns[-1].turn, "snapshot")
        stepping = begin_step(env, turns[-1].action)

        def reached() -> list[Passed]:
            try:
                reaching()
                stepping()
                return [*(Passed(turn.snapshot or b"", turn.state_hash) for turn in turns), _now(env)]
            finally:
                env.close()

        return reached


def _replayed(env: Env, transcript: Transcript) -> list[Passed]:
    try:
        env.reset(transcript.task, transcript.episode.seed)
        passed = []
        for turn in transcript.turns:
            passed.append(_now(env))
            env.step(turn.action)
        return [*passed, _now(env)]
    finally:
        env.close()


def _now(env: Env) -> Passed:
    return Passed(_stored(env.dump()), env.state_hash())


def _stored(state: bytes | None) -> bytes:
    if state is None:
        raise ConfigError(
            "the oracle teacher needs the environment's state, and this environment stores none",
            where="teacher.kind",
            mend="choose another teacher",
        )
    return state


def _seen(view: View) -> Hashable:
    """Return what of a view an oracle goes by: neither the turn nor privileged text."""
    return view.instruction, view.history, view.observation, view.admissible


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
