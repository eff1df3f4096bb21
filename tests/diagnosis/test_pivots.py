"""Pivotal turns: read in a checked replay, classed by hand, and the same whatever played beside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pivotopd.diagnosis.failures import episode_reading, failures_part, turn_readings
from pivotopd.diagnosis.figures import metrics
from pivotopd.diagnosis.pivots import PIVOTAL, Reading, read_episode, read_turns, replayed
from pivotopd.environments.base import View
from pivotopd.environments.replay import Passed
from pivotopd.errors import EnvironmentFault, ReplayDivergence, SearchLimit
from pivotopd.evaluation import panel_jobs
from pivotopd.rollout import Job, Played
from pivotopd.teacher.base import Transcript
from tests import play

TASKS = tuple(play.environment().tasks("valid"))
BY_ID = play.by_id(TASKS)


def panel(batch: int = 64, *, shuffled: int | None = None) -> list[Transcript]:
    """Return a wandering policy's episodes, by id."""
    jobs = panel_jobs(TASKS, samples=6, seed=7)
    if shuffled is not None:
        jobs = random.Random(shuffled).sample(jobs, len(jobs))
    played = play.player(play.wander, batch=batch).play(jobs)
    return [
        Transcript(BY_ID[one.episode.task], one.episode, one.turns)
        for one in sorted(played, key=lambda one: one.episode.episode)
    ]


def scripted(actions: list[str], turns: int, task: int = 0) -> Transcript:
    job = Job("e", TASKS[task], "g", 0, 5)
    (one,) = play.player(play.script({job.seed: actions}), max_turns=turns).play([job])
    return Transcript(TASKS[task], one.episode, one.turns)


@pytest.fixture(scope="module")
def failures() -> list[Transcript]:
    found = [one for one in panel() if not one.episode.won]
    for index, task in enumerate(TASKS):
        found += [scripted(play.lose(task, {turn}, 12), 12, index) for turn in (1, 2, 3)]
    return found


def test_every_recorded_failure_is_reproduced(failures: list[Transcript]) -> None:
    """Nothing changed: replaying a failure gives its observations, its states, its verdict, its distances."""
    assert len(failures) > 20
    for transcript in failures:
        states = replayed(play.environment(), transcript)
        reading = read_episode(play.environment(), transcript)
        oracle = play.environment().oracle(transcript.task)
        assert [one.hash for one in states[:-1]] == [turn.state_hash for turn in transcript.turns]
        stored = [oracle.distance(turn.snapshot or b"") for turn in transcript.turns]
        assert [turn.before for turn in reading.turns] == stored
        env = play.environment().open()
        last = transcript.turns[-1]
        env.load(transcript.task, last.snapshot or b"")
        restored = env.step(last.action)
        assert (restored.observation, restored.won) == (last.next_observation, False)
        assert env.dump() == states[-1].state
        assert reading.turns[-1].after == oracle.distance(states[-1].state)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda turn: replace(turn, observation="?"),
        lambda turn: replace(turn, next_observation="?"),
        lambda turn: replace(turn, state_hash="?"),
        lambda turn: replace(turn, snapshot=b"{}"),
    ],
)
def test_a_replay_that_differs_is_refused(failures: list[Transcript], spoil: Callable[..., object]) -> None:
    first = failures[0]
    turns = [*first.turns[:2], spoil(first.turns[2]), *first.turns[3:]]
    with pytest.raises(ReplayDivergence):
        read_episode(play.environment(), Transcript(first.task, first.episode, turns))  # type: ignore[arg-type]


def test_another_verdict_is_refused(failures: list[Transcript]) -> None:
    first = failures[0]
    claimed = Transcript(first.task, replace(first.episode, won=True), first.turns)
    with pytest.raises(ReplayDivergence, match="its replay was not"):
        read_episode(play.environment(), claimed)


def test_turns_by_hand() -> None:
    task = TASKS[0]
    actions = play.lose(task, {2}, 6)
    reading = read_episode(play.environment(), scripted(actions, 6))
    classes = [turn.change for turn in reading.turns]
    assert classes == ["progress", "progress", "regress", "neutral", "neutral", "neutral"]
    assert [turn.moved for turn in reading.turns] == [True, True, True, False, False, False]
    assert (reading.pivot, reading.kind, reading.wasted) == (2, "after_pivot", 3)
    row = episode_reading(reading, play.environment())
    assert (row.pivot_turn, row.pivots, row.wasted_turns) == (2, 1, 3)
    assert row.distance_at_start == len(play.plan(task))
    best = play.environment().oracle(task).best_actions(reading.states[2], None)
    assert row.oracle_action == best[0] != actions[2]
    turns = turn_readings(reading, 6)
    left = [turn.distance_before for turn in turns]
    assert [turn.out_of_reach for turn in turns] == [6 - t < (left[t] or 0) for t in range(6)]


def test_idling_is_no_pivot_and_winning_is_no_failure() -> None:
    idle = read_episode(play.environment(), scripted(["look"] * 4, 4))
    assert (idle.pivot, idle.kind, idle.wasted) == (None, "no_pivot", None)
    won = read_episode(play.environment(), scripted(play.plan(TASKS[0], {2}), 24))
    assert (won.pivot, won.kind) == (2, "won")


class Listed:
    """An oracle that says what it is told, by state."""

    def distance(self, state: bytes) -> int | None:
        if state == b"?":
            raise SearchLimit("too large")
        return None if state == b"-" else int(state)

    def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
        return ("look",)


def listed(*states: str) -> list[Passed]:
    return [Passed(state.encode(), state) for state in states]


def test_classes_of_listed_distances() -> None:
    turns = list(read_turns(Listed(), listed("5", "4", "4", "6", "-", "-", "?", "3")))
    classes = ["progress", "neutral", "regress", "dead", "neutral", "unknown", "unknown"]
    assert [turn.change for turn in turns] == classes
    assert [turn.before for turn in turns] == [5, 4, 4, 6, None, None, None]
    assert [turn.change in PIVOTAL for turn in turns] == [False, False, True, True, False, False, False]


def test_a_search_that_was_given_up_before_the_pivot_leaves_the_failure_unjudged() -> None:
    transcript = scripted(["look"] * 3, 3)

    def kind(*states: str) -> str:
        return Reading(transcript, tuple(read_turns(Listed(), listed(*states))), ()).kind

    assert kind("5", "?", "5", "7") == "unjudged"
    assert kind("5", "7", "?", "7") == "after_pivot"
    assert kind("5", "5", "5", "?") == "unjudged"
    assert kind("5", "5", "5", "5") == "no_pivot"


def test_an_engine_without_states_is_refused() -> None:
    env = play.environment().open()
    env.dump = lambda: None  # type: ignore[method-assign]  # as the stock engine's
    from pivotopd.environments.replay import replay

    with pytest.raises(EnvironmentFault, match="gives none"):
        replay(env, TASKS[0], 0, scripted(["look"], 1).turns)


@pytest.mark.parametrize(("batch", "shuffled"), [(1, 1), (3, 2), (7, None)])
def test_figures_depend_on_neither_batch_nor_order(batch: int, shuffled: int | None) -> None:
    def figures(transcripts: list[Transcript], order: int | None) -> dict[str, float]:
        readings = [read_episode(play.environment(), one) for one in transcripts]
        rows = [episode_reading(one, play.environment()) for one in readings]
        turns = [turn for one in readings for turn in turn_readings(one, play.MAX_TURNS)]
        if order is not None:
            rows, turns = random.Random(order).sample(rows, len(rows)), turns[::-1]
        return metrics([failures_part(rows, turns, draws=200, seed=0)])

    assert figures(panel(batch, shuffled=shuffled), shuffled) == figures(panel(), None)


def test_an_episode_without_turns_has_nothing_to_read() -> None:
    empty = play.player(play.refuse, prompter=play.prompter(prompt_tokens=3))
    (one,) = empty.play([Job("e", TASKS[0], "g", 0, 5)])
    assert isinstance(one, Played)
    reading = read_episode(play.environment(), Transcript(TASKS[0], one.episode, one.turns))
    assert (reading.turns, reading.kind) == ((), "no_pivot")
    assert episode_reading(reading, play.environment()).distance_at_start is None
