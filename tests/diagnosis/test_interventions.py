"""Interventions on crafted episodes: what is replayed, who acts, what is counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pivotopd.config import EnvironmentSection
from pivotopd.diagnosis.bootstrap import Interval
from pivotopd.diagnosis.interventions import (
    Case,
    InterventionRate,
    Trial,
    interventions_of,
    other_turn,
    outcomes,
    summarise,
    trials_of,
)
from pivotopd.diagnosis.pivots import PIVOTAL, read_episode
from pivotopd.diagnosis.restored import check_restored, differences, recorded_jobs
from pivotopd.environments.alfworld.environment import AlfworldEnvironment, AlfworldOracle
from pivotopd.environments.base import Env
from pivotopd.environments.replay import Reach
from pivotopd.errors import ReplayDivergence, SearchLimit
from pivotopd.records import from_table, to_table
from pivotopd.records_probes import Intervention
from pivotopd.rollout import Job, Played
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Transcript
from tests import play

TASKS = tuple(play.environment().tasks("valid"))
WAYS: list[Reach] = ["snapshot", "replay"]
NAMES = interventions_of((1, 2, 3))
LIMIT = 14


def lost(name: str, task_index: int, mistakes: set[int], turns: int = LIMIT) -> Transcript:
    task = TASKS[task_index]
    job = Job(name, task, name, 0, seed_of("test", name))
    actions = play.lose(task, mistakes, turns)
    (one,) = play.player(play.script({job.seed: actions}), max_turns=turns).play([job])
    assert not one.episode.won
    return play.transcript(task, one)


def case_of(transcript: Transcript) -> Case:
    reading = read_episode(play.environment(), transcript)
    assert reading.pivot is not None
    pivotal = frozenset(turn.turn for turn in reading.turns if turn.change in PIVOTAL)
    return Case(transcript, reading.pivot, pivotal)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    found = [case_of(lost("a", 0, {2, 4})), case_of(lost("b", 1, {3})), case_of(lost("c", 2, {1}))]
    assert [(one.pivot, one.pivotal) for one in found] == [
        (2, frozenset({2, 4})),
        (3, frozenset({3})),
        (1, frozenset({1})),
    ]
    return found


def trials(cases: Sequence[Case], repeats: int = 1, how: Reach = "snapshot") -> list[Trial]:
    return trials_of(play.environment(), cases, repeats=repeats, after=(1, 2, 3), seed=5, how=how)


def played(
    found: Sequence[Trial], answer: play.Answer = play.wander, **changes: object
) -> list[Intervention]:
    one = play.player(answer, max_turns=LIMIT, **changes)  # type: ignore[arg-type]  # fields by name
    return outcomes(found, one.play(trial.job for trial in found), one.origin)


def idle(text: str, seed: int) -> str:
    return play.reply("look")


def test_each_intervention_replays_up_to_its_turn_and_the_oracle_acts_where_it_should(
    cases: list[Case],
) -> None:
    rows = played(trials(cases), idle)
    by_case = {one.transcript.episode.episode: one for one in cases}
    expected = {
        "none": (1, []), "resample": (0, []), "at_pivot": (0, [0]),
        "after_1": (1, [1]), "after_2": (1, [1, 2]), "after_3": (1, [1, 2, 3]),
    }  # fmt: skip
    for row in rows:
        case = by_case[row.episode]
        if row.intervention == "other_turn":
            assert row.start_turn == other_turn(case, 5)
            assert row.start_turn > case.pivot
            assert row.start_turn not in case.pivotal
            assert row.forced_turns == [row.start_turn]
            continue
        start, forced = expected[row.intervention]
        assert row.start_turn == case.pivot + start
        assert row.forced_turns == [case.pivot + turn for turn in forced]
        assert (row.won, row.turns, row.termination) == (False, LIMIT, "turn_limit")
    assert {row.intervention for row in rows} == set(NAMES)
    assert from_table(Intervention, to_table(Intervention, rows), "here") == rows


def test_forced_actions_are_the_oracles_asked_anew_in_the_state_that_was_reached(cases: list[Case]) -> None:
    rows = {(row.episode, row.intervention): row for row in played(trials(cases), idle)}
    for case in cases:
        env = play.environment().open()
        task, turns = case.transcript.task, case.transcript.turns
        env.reset(task, case.transcript.episode.seed)
        for turn in turns[: case.pivot]:
            env.step(turn.action)
        mark = env.snapshot()
        assert rows[case.transcript.episode.episode, "at_pivot"].forced_actions == [play.best(task, env)]
        env.restore(mark)
        env.step(turns[case.pivot].action)
        actions = []
        for _ in range(3):
            actions.append(play.best(task, env))
            env.step(actions[-1])
        for count in (1, 2, 3):
            row = rows[case.transcript.episode.episode, f"after_{count}"]
            assert row.forced_actions == actions[:count]


def test_a_policy_that_knows_the_way_wins_under_every_intervention_within_the_limit(
    cases: list[Case],
) -> None:
    found = trials(cases)
    plans: dict[int, list[str]] = {}
    for trial in found:
        assert trial.job.start is not None
        env = play.environment().open()
        trial.job.start.open_at(env)
        actions = ["?"] * len(trial.job.start.turns)
        done = False
        while not done:
            actions.append(play.best(trial.job.task, env))
            done = env.step(actions[-1]).done
        plans[trial.job.seed] = actions
    one = play.player(play.script(plans))
    rows = outcomes(found, one.play(trial.job for trial in found), one.origin)
    assert all(row.won for row in rows)
    assert [row.turns for row in rows] == [len(plans[trial.job.seed]) for trial in found]
    # The limit counts the recorded turns too: one turn less and the same play is lost.
    first = found[0]
    short = play.player(play.script(plans), max_turns=len(plans[first.job.seed]) - 1)
    (result,) = outcomes([first], short.play([first.job]), short.origin)
    assert (result.won, result.termination, result.turns) == (False, "turn_limit", short.max_turns)


@pytest.mark.parametrize("how", WAYS)
def test_recorded_actions_from_a_restored_state_end_as_recorded(cases: list[Case], how: Reach) -> None:
    one = play.player(play.refuse, max_turns=LIMIT)
    assert differences(cases, one.play(recorded_jobs(cases, how))) == []
    check_restored(cases, play.player(play.refuse, max_turns=LIMIT).play(recorded_jobs(cases, how)))


def test_all_recorded_failures_of_a_panel_are_reproduced() -> None:
    jobs = play.jobs_of(TASKS, samples=6)
    lost_ones = [
        case_of(play.transcript(job.task, one))
        for job, one in zip(jobs, _in_order(jobs), strict=True)
        if not one.episode.won and _has_pivot(play.transcript(job.task, one))
    ]
    assert len(lost_ones) >= 8
    for how in WAYS:
        again = play.player(play.refuse).play(recorded_jobs(lost_ones, how))
        assert differences(lost_ones, again) == []


def _in_order(jobs: list[Job]) -> list[Played]:
    found = play.played(play.player(play.wander), jobs)
    return [found[job.episode] for job in jobs]


def _has_pivot(transcript: Transcript) -> bool:
    return read_episode(play.environment(), transcript).kind == "after_pivot"


def test_a_replay_that_ends_otherwise_is_refused_and_named(cases: list[Case]) -> None:
    broken = replace(
        cases[1].transcript, turns=[*cases[1].transcript.turns[:-1], play.made_turn(LIMIT - 1, action="look")]
    )
    changed = [cases[0], replace(cases[1], transcript=broken)]
    replays = list(play.player(play.refuse, max_turns=LIMIT).play(recorded_jobs(changed, "snapshot")))
    with pytest.raises(ReplayDivergence, match=r"1 of 2 restored .* b: another observation at turn 13"):
        check_restored(changed, replays)
    longer = list(play.player(play.wander, max_turns=LIMIT + 1).play(recorded_jobs(cases, "snapshot")))
    assert "15 turns, recorded 14" in differences(cases, longer)[0]


def test_rows_depend_on_neither_order_nor_batch_and_seeds_differ(cases: list[Case]) -> None:
    found = trials(cases, repeats=2)
    expected = played(found)
    assert played(random.Random(0).sample(found, len(found)), batch=3) != expected
    shuffled = played(random.Random(0).sample(found, len(found)), batch=3)
    assert sorted(shuffled, key=lambda row: row.seed) == sorted(expected, key=lambda row: row.seed)
    assert len({trial.job.seed for trial in found}) == len({t.job.episode for t in found}) == len(found)
    alone = trials(cases[1:2], repeats=2)
    assert [t.job.seed for t in alone] == [t.job.seed for t in found if t.case is cases[1]]
    assert played(trials(cases, repeats=2, how="replay")) == expected
    names = list(NAMES)
    rates = summarise(expected, names, draws=50, seed=0)
    assert rates == summarise(shuffled, names, draws=50, seed=0)
    assert sum(rate.trials for rate in rates) == len(found)


def test_a_mistake_on_the_last_turn_leaves_nothing_to_play() -> None:
    task = TASKS[2]
    actions = play.plan(task, {3}, 4)
    job = Job("last", task, "last", 0, 9)
    (one,) = play.player(play.script({job.seed: actions}), max_turns=4).play([job])
    case = case_of(play.transcript(task, one))
    assert case.pivot == 3
    player = play.player(idle, max_turns=4)
    found = trials([case])
    rows = {
        row.intervention: row for row in outcomes(found, player.play(t.job for t in found), player.origin)
    }
    assert "other_turn" not in rows
    for name in ("none", "after_1", "after_3"):
        assert (rows[name].turns, rows[name].termination, rows[name].forced_turns) == (4, "turn_limit", [])
    assert rows["at_pivot"].forced_turns == [3]


def test_the_other_turn_is_uniform_over_turns_that_are_not_pivotal(cases: list[Case]) -> None:
    case = cases[0]
    drawn = [other_turn(case, seed) for seed in range(3000)]
    later = [turn for turn in range(LIMIT) if turn > 2 and turn != 4]
    assert set(drawn) == {None, *later}
    # 12 turns are not pivotal, and two of them lie before the mistake.
    assert drawn.count(None) / len(drawn) == pytest.approx(2 / 12, abs=0.03)
    for turn in later:
        assert drawn.count(turn) / len(drawn) == pytest.approx(1 / 12, abs=0.03)
    everywhere = replace(case, pivotal=frozenset(range(LIMIT)))
    assert other_turn(everywhere, 0) is None


def test_where_nothing_can_be_named_the_policy_plays(cases: list[Case]) -> None:
    class Mute(AlfworldOracle):
        def best_actions(self, state: bytes, view: object) -> tuple[str, ...]:
            return ()

    class Tired(AlfworldOracle):
        def best_actions(self, state: bytes, view: object) -> tuple[str, ...]:
            raise SearchLimit("too large")

    for kind, count in ((Mute, 0), (Tired, 1)):
        env = play.with_oracle(kind)
        found = trials_of(env, cases[:1], repeats=1, after=(1,), seed=5, how="snapshot")
        rows = {row.intervention: row for row in played(found, idle)}
        assert rows["at_pivot"].forced_turns == []
        assert (rows["at_pivot"].error is not None) == bool(count)
        (rate,) = summarise(rows.values(), ["at_pivot"], draws=9, seed=0)
        assert (rate.trials, rate.left_out, rate.success is None) == (1 - count, count, bool(count))


def made(name: str, episode: str, repeat: int, *, won: bool, error: str | None = None) -> Intervention:
    return Intervention(
        run="r", iteration=0, policy="p", episode=episode, task="t", family="f", intervention=name,
        repeat=repeat, seed=1, pivot_turn=2, start_turn=3, forced_turns=[], forced_actions=[], won=won,
        turns=9, termination="won" if won else "turn_limit", error=error,
    )  # fmt: skip


def test_the_mean_is_over_episodes_and_broken_replays_count_nowhere() -> None:
    rows = [
        made("none", "a", 0, won=True), made("none", "a", 1, won=False), made("none", "a", 2, won=False),
        made("none", "a", 3, won=False), made("none", "b", 0, won=True),
        made("none", "b", 1, won=False, error="x"), made("none", "c", 0, won=False, error="x"),
    ]  # fmt: skip
    (none, at) = summarise(rows, ["none", "at_pivot"], draws=4000, seed=0)
    assert at == InterventionRate("at_pivot", 0, 0, None)
    # a: 1/4, b: 1/1, c: nothing left. A quarter of the resamples hold a twice, a quarter b twice.
    assert (none.trials, none.left_out) == (5, 2)
    assert none.success == Interval(0.625, 0.25, 1.0, 2)
    assert summarise([], NAMES, draws=9, seed=0) == [InterventionRate(name, 0, 0, None) for name in NAMES]
    assert trials([]) == []
    assert recorded_jobs([], "snapshot") == []


def test_a_policy_that_never_or_always_wins_has_a_share_of_0_or_1() -> None:
    for won in (False, True):
        rows = [made("none", episode, repeat, won=won) for episode in "abc" for repeat in range(2)]
        (rate,) = summarise(rows, ["none"], draws=20, seed=0)
        assert rate.success == Interval(float(won), float(won), float(won), 3)


def test_an_environment_without_states_ends_a_forced_replay_with_a_reason(cases: list[Case]) -> None:
    trial = next(one for one in trials(cases) if one.intervention == "at_pivot")
    assert trial.job.forced is not None

    class Blind:
        def dump(self) -> bytes | None:
            return None

    blind: Env = Blind()  # type: ignore[assignment]  # only what is asked for
    with pytest.raises(Exception, match="needs the environment's state"):
        trial.job.forced(blind, trial.case.pivot)
    assert trial.job.forced(blind, trial.case.pivot + 1) is None


def test_recorded_failures_of_official_games_are_reproduced(shared_data: Path) -> None:
    section = EnvironmentSection(prompt="compact", games=str(shared_data / "alfworld"))
    official = AlfworldEnvironment(section)
    jobs = play.jobs_of(official.tasks("valid_seen")[::70], samples=4)
    one = play.player(play.wander, env=official, max_turns=LIMIT)
    found = {result.episode.episode: result for result in one.play(jobs)}
    cases = []
    for job in jobs:
        reading = read_episode(official, play.transcript(job.task, found[job.episode]))
        if reading.kind == "after_pivot" and reading.pivot is not None:
            cases.append(Case(reading.transcript, reading.pivot, frozenset({reading.pivot})))
    assert len(cases) >= 2
    for how in WAYS:
        again = play.player(play.refuse, env=official, max_turns=LIMIT).play(recorded_jobs(cases, how))
        assert differences(cases, again) == []
