"""The oracle as a teacher: the turns after which the distance grew, and actions fit to be known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pivotopd.agent.prompting import Prompter
from pivotopd.config import EnvironmentSection, RunConfig
from pivotopd.environments.alfworld.environment import AlfworldEnvironment, AlfworldOracle
from pivotopd.environments.alfworld.informed import InformedOracle
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import World, parse_problem
from pivotopd.environments.alfworld.snapshots import from_bytes, to_bytes
from pivotopd.environments.base import Task, View
from pivotopd.errors import ConfigError, SearchLimit
from pivotopd.rollout import Job
from pivotopd.teacher.base import Query, Transcript
from pivotopd.teacher.oracle import OracleTeacher, view_of
from pivotopd.teacher.pivots import labels_of
from pivotopd.teacher.registry import make_teacher
from tests import play

TASKS = tuple(play.environment().tasks("train"))


def teacher(*, informed: bool = False, m: int = 50) -> OracleTeacher:
    return OracleTeacher(play.environment(), informed, m)


def played(plan: Sequence[str], task: Task = TASKS[0]) -> Transcript:
    (job,) = play.jobs_of([task])
    (result,) = play.player(play.script({job.seed: plan}), max_turns=len(plan)).play([job])
    return play.transcript(task, result)


def wandered() -> list[Transcript]:
    jobs: list[Job] = play.jobs_of(TASKS[:4])
    found = play.played(play.player(play.wander), jobs)
    return [play.transcript(job.task, found[job.episode]) for job in jobs]


def world_of(task: Task) -> World:
    return parse_problem(task.payload.pddl_problem, task.payload.task_sentence, task.id)


def distances(transcript: Transcript) -> list[int | None]:
    """Replay with the engine and ask the search itself: a second way to the same numbers."""
    oracle, env = Oracle(world_of(transcript.task)), play.environment().open()
    env.reset(transcript.task, 0)
    found = [oracle.distance(env.snapshot().state)]
    for turn in transcript.turns:
        env.step(turn.action)
        found.append(oracle.distance(env.snapshot().state))
    return found


def grown(transcript: Transcript) -> list[tuple[int, int | None, int | None]]:
    found = distances(transcript)
    return [
        (turn, before, after)
        for turn, (before, after) in enumerate(itertools.pairwise(found))
        if before is not None and (after is None or after > before)
    ]


@pytest.mark.parametrize("informed", [False, True])
def test_candidates_are_exactly_the_turns_after_which_the_distance_grew(informed: bool) -> None:
    won = [played(play.plan(task, {2, 4}), task) for task in TASKS[:3]]
    lost = [played(play.lose(task, {3}), task) for task in TASKS[:3]]
    assert all(one.episode.won for one in won)
    assert not any(one.episode.won for one in lost)
    several = [*won, *lost, *wandered()]
    readings = teacher(informed=informed).read(several)
    for transcript, reading in zip(several, readings, strict=True):
        found = [(one.turn, one.distance_before, one.distance_after) for one in reading.candidates]
        assert found == grown(transcript)
        assert reading.lesson is None
    assert [[one.turn for one in reading.candidates] for reading in readings[:6]] == [[2, 4]] * 3 + [[3]] * 3
    assert any(reading.candidates for reading in readings[6:])


def test_a_flawless_episode_has_no_candidate() -> None:
    (reading,) = teacher().read([played(play.plan(TASKS[0]))])
    assert reading.candidates == ()


def test_a_mistake_on_the_last_turn_is_seen() -> None:
    transcript = played(play.plan(TASKS[0], {4}, 5))
    (reading,) = teacher().read([transcript])
    assert [one.turn for one in reading.candidates] == [4]


def test_gold_actions_of_the_exact_oracle_shorten_the_way_and_all_of_them_are_accepted() -> None:
    for transcript in [played(play.plan(TASKS[0], {2, 4})), *wandered()]:
        (reading,) = teacher().read([transcript])
        oracle = play.environment().oracle(transcript.task)
        for candidate in reading.candidates:
            turn = transcript.turns[candidate.turn]
            assert candidate.gold_action is not None
            env = play.environment().open()
            shorter = set()
            for action in turn.admissible or ():
                assert turn.snapshot is not None
                env.load(transcript.task, turn.snapshot)
                env.step(action)
                if oracle.distance(play.dumped(env)) == (candidate.distance_before or 0) - 1:
                    shorter.add(action)
            assert {candidate.gold_action, *candidate.accepted} == shorter
        labels = labels_of(reading, transcript.turns, play.environment().wording, "oracle", 50)
        assert all(label.pivotal for label in labels)


def test_at_most_m_the_first_ones() -> None:
    transcript = played(play.plan(TASKS[0], {2, 4}))
    for m, turns in ((1, [2]), (2, [2, 4]), (3, [2, 4])):
        (reading,) = teacher(m=m).read([transcript])
        assert [one.turn for one in reading.candidates] == turns


@pytest.mark.parametrize("informed", [False, True])
def test_rows_without_stored_states_are_replayed_to_the_same_reading(informed: bool) -> None:
    for transcript in [played(play.plan(TASKS[1], {2, 4}), TASKS[1]), wandered()[0]]:
        bare = replace(transcript, turns=[replace(turn, snapshot=None) for turn in transcript.turns])
        one = teacher(informed=informed)
        assert one.read([bare]) == one.read([transcript])


def test_an_episode_without_turns_has_no_candidates() -> None:
    transcript = played(play.plan(TASKS[0]))
    (reading,) = teacher().read([replace(transcript, turns=())])
    assert reading.candidates == ()


# ---------------------------------------------------------------------- informed


def test_informed_and_exact_differ_where_the_object_has_not_been_seen() -> None:
    differing = 0
    for task in TASKS:
        env = play.environment().open()
        seen = env.reset(task, 0)
        view = View(play.environment().instruction(task), (), 0, seen.observation, seen.admissible)
        query = Query(task, view, env.dump())
        (exact,) = teacher().next_actions([query])
        (informed,) = teacher(informed=True).next_actions([query])
        assert exact is not None
        assert informed is not None
        differing += exact != informed
        world = world_of(task)
        places = {world.names[place] for thing, place in world.start.inside if thing in world.goal_objects}
        assert exact.removeprefix("go to ") in places
        # Nothing has been shown yet, so every place is as good as any other.
        assert set(play.environment().oracle(task).best_actions(play.dumped(env), view)) == {
            f"go to {world.names[place]}" for place in world.receptacles
        }
    assert differing >= 4


def test_informed_names_the_same_action_wherever_the_unseen_objects_lie() -> None:
    """What the view does not show is moved about: the informed oracle must not notice."""
    moved = noticed = 0
    for transcript in [*wandered(), *(played(play.plan(task, {2}), task) for task in TASKS[:3])]:
        world = world_of(transcript.task)
        informed, oracle = InformedOracle(world), AlfworldOracle(world, transcript.task.id, "move")
        for turn in transcript.turns:
            view = view_of(transcript.turns, turn.turn)
            known = informed.read([*(seen for seen, _ in view.history), view.observation])
            assert turn.snapshot is not None
            snapshot = from_bytes(turn.snapshot, "here")
            inside = snapshot.state.inside
            hidden = {pair for pair in inside if pair[1] not in known.shown and pair not in known.placed}
            unseen = [place for place in world.receptacles if place not in known.shown]
            shifted = {(thing, unseen[unseen.index(at) - 1]) for thing, at in hidden}
            other = snapshot.state._replace(inside=(inside - hidden) | shifted)
            state = to_bytes(replace(snapshot, state=other))
            assert oracle.best_actions(state, view) == oracle.best_actions(turn.snapshot, view)
            moved += shifted != hidden
            noticed += oracle.best_actions(state, None) != oracle.best_actions(turn.snapshot, None)
    assert moved > 20
    assert noticed > 5  # the exact oracle does, so the test can fail


def test_informed_names_only_admissible_actions() -> None:
    for transcript in wandered():
        queries = [
            Query(transcript.task, view_of(transcript.turns, turn.turn), turn.snapshot)
            for turn in transcript.turns
        ]
        for turn, action in zip(transcript.turns, teacher(informed=True).next_actions(queries), strict=True):
            assert action is None or action in (turn.admissible or ())


def played_with(prompter: Prompter, plan: Sequence[str], task: Task = TASKS[0]) -> Transcript:
    (job,) = play.jobs_of([task])
    player = play.player(play.script({job.seed: plan}), max_turns=len(plan), prompter=prompter)
    (result,) = player.play([job])
    return play.transcript(task, result)


def test_a_view_is_what_the_prompt_showed() -> None:
    plan = play.plan(TASKS[0], {2, 4})
    longest = max(len(turn.prompt_ids) for turn in played_with(play.prompter(history=50), plan).turns)
    shown = set()
    for history, tokens in ((0, 4096), (1, 4096), (5, 4096), (50, 4096), (50, longest - 20)):
        prompter = play.prompter(history=history, prompt_tokens=tokens)
        transcript = played_with(prompter, plan)
        for turn in transcript.turns:
            view = view_of(transcript.turns, turn.turn)
            assert view == prompter.rebuilt(transcript.turns, turn.turn).view
            assert len(view.history) <= history
        shown.add(len(view.history))
    assert len(shown) == 5, "the last one dropped pairs to fit"


def test_a_label_rests_on_what_the_prompt_showed_not_on_pairs_that_it_had_dropped() -> None:
    """Two episodes of the same actions: one whose prompts had no room for the pairs is advised blindly."""
    asked: list[int] = []

    class Watched(AlfworldEnvironment):
        def oracle(self, task: Task) -> AlfworldOracle:
            class Noting(AlfworldOracle):
                def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
                    assert view is not None
                    asked.append(len(view.history))
                    return super().best_actions(state, view)

            return Noting(world_of(task), task.id, "move")

    def one() -> OracleTeacher:
        environment = Watched(EnvironmentSection(prompt="compact", generated=play.GAMES))
        return OracleTeacher(environment, informed=True, max_candidates=50)

    plan = play.plan(TASKS[0], {2, 4})
    roomy = played_with(play.prompter(), plan)
    tight = max(len(turn.prompt_ids) for turn in played_with(play.prompter(history=0), plan).turns)
    one().read([roomy])
    assert asked == [2, 4]
    asked.clear()
    one().read([played_with(play.prompter(prompt_tokens=tight), plan)])
    assert asked, "what both turns show without pairs is the same: it is asked about once"
    assert max(asked) < 2


# ---------------------------------------------------------------------- equal states


class Counting(AlfworldEnvironment):
    """The games of the tests; every question to an oracle is written down, with its state and view."""

    def __init__(self) -> None:
        super().__init__(EnvironmentSection(prompt="compact", generated=play.GAMES))
        self.asked: list[tuple[object, ...]] = []

    def oracle(self, task: Task) -> AlfworldOracle:
        asked = self.asked

        class Noting(AlfworldOracle):
            def distance(self, state: bytes) -> int | None:
                asked.append((task.id, from_bytes(state, "").state))
                return super().distance(state)

            def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
                seen = view and (view.history, view.observation)
                asked.append((task.id, from_bytes(state, "").state, seen))
                return super().best_actions(state, view)

        return Noting(world_of(task), task.id, "move")


@pytest.mark.parametrize("informed", [False, True])
def test_an_equal_state_is_searched_once_and_answered_as_if_it_were_searched_anew(
    informed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [played(play.plan(task, {2, 4}), task) for task in TASKS[:3]]
    several += [played(play.lose(task, {3}), task) for task in TASKS[:3]]
    queries = [
        Query(one.task, view_of(one.turns, turn.turn), turn.snapshot, turn.state_hash)
        for one in several
        for turn in one.turns
    ]
    shared = OracleTeacher(Counting(), informed=informed, max_candidates=50)
    found = shared.read(several), shared.next_actions(queries)
    environment = shared.environment
    assert isinstance(environment, Counting)
    assert len(environment.asked) == len(set(environment.asked)), "no state is searched twice"
    once = OracleTeacher(Counting(), informed=informed, max_candidates=50)
    monkeypatch.setattr(once, "_once", lambda _, search: search())
    assert found == (once.read(several), once.next_actions(queries))
    assert shared.counts == once.counts
    assert once.spent.oracle_repeats == 0
    assert isinstance(once.environment, Counting)
    assert shared.spent.oracle_repeats == len(once.environment.asked) - len(environment.asked) > 0


def test_a_search_that_was_given_up_is_not_tried_again() -> None:
    tried: list[bytes] = []

    class Exhausting(AlfworldOracle):
        def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
            tried.append(state)
            raise SearchLimit("too large")

    transcript = played(play.plan(TASKS[0]))
    turn = transcript.turns[0]
    one = OracleTeacher(play.with_oracle(Exhausting), informed=False, max_candidates=5)
    query = Query(transcript.task, view_of(transcript.turns, 0), turn.snapshot, turn.state_hash)
    assert one.next_actions([query, query]) == [None, None]
    assert (len(tried), one.counts["oracle_searches"], one.counts["oracle_searches_given_up"]) == (1, 2, 2)
    unknown = replace(query, state_hash=None)
    assert one.next_actions([unknown, unknown]) == [None, None]
    assert len(tried) == 3, "without a hash nothing is known again"


# ---------------------------------------------------------------------- limits and misuse


class Exhausted(AlfworldEnvironment):
    """An environment whose searches are given up, all of them or those for an action."""

    def __init__(self, *, distances: bool) -> None:
        super().__init__(EnvironmentSection(prompt="compact", generated=play.GAMES))
        self.distances = distances

    def oracle(self, task: Task) -> AlfworldOracle:
        outer = self

        class Tired(AlfworldOracle):
            def distance(self, state: bytes) -> int | None:
                if outer.distances:
                    raise SearchLimit("too large")
                return super().distance(state)

            def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
                raise SearchLimit("too large")

        return Tired(world_of(task), task.id, "move")


def test_a_search_that_is_given_up_is_counted_and_never_a_mistake() -> None:
    transcript = played(play.plan(TASKS[0], {2, 4}))
    blind = OracleTeacher(Exhausted(distances=True), False, 50)
    (reading,) = blind.read([transcript])
    assert reading.candidates == ()
    turns = len(transcript.turns)
    assert blind.counts == {
        "oracle_searches": 2 * turns,
        "oracle_searches_given_up": turns,
        "episodes_unreadable": 0,
    }
    mute = OracleTeacher(Exhausted(distances=False), False, 50)
    (reading,) = mute.read([transcript])
    assert [(one.turn, one.gold_action) for one in reading.candidates] == [(2, None), (4, None)]
    labels = labels_of(reading, transcript.turns, play.environment().wording, "oracle", 50)
    assert [label.reason for label in labels] == ["unresolved", "unresolved"]
    view = view_of(transcript.turns, 0)
    assert mute.next_actions([Query(transcript.task, view, transcript.turns[0].snapshot)]) == [None]
    assert mute.counts["oracle_searches_given_up"] == 3


def test_a_query_without_a_state_is_refused() -> None:
    transcript = played(play.plan(TASKS[0]))
    with pytest.raises(ConfigError, match="stores none"):
        teacher().next_actions([Query(transcript.task, view_of(transcript.turns, 0), None)])


def test_an_episode_that_cannot_be_reached_again_costs_its_own_reading_only() -> None:
    good, other = played(play.plan(TASKS[0], {2})), played(play.plan(TASKS[0], {2}))
    last = replace(other.turns[-1], observation="something else")
    broken = replace(other, turns=[*other.turns[:-1], last])
    one = teacher()
    unread, read = one.read([broken, good])
    assert unread.candidates == ()
    assert "differs" in (unread.unread or "")
    assert [candidate.turn for candidate in read.candidates] == [2]
    assert one.counts["episodes_unreadable"] == 1


def test_the_configuration_makes_it() -> None:
    config = RunConfig.model_validate(
        {"teacher": {"informed": False, "max_candidates": 2}, "environment": {"history": 3}}
    )
    made = make_teacher(config, play.environment())
    assert isinstance(made, OracleTeacher)
    assert (made.informed, made.max_candidates, made.name) == (False, 2, "oracle")
    assert teacher(informed=True).name == "oracle (informed)"
