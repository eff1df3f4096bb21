"""Mistakes found by search, and replays that start where they must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pivotopd.config import EnvironmentSection
from pivotopd.diagnosis.mistakes import (
    Mistake,
    basis_of,
    check_basis,
    find_mistakes,
    load_mistakes,
    recorded,
)
from pivotopd.diagnosis.recovery import RecoveryRate, recovery_jobs, summarise_recovery
from pivotopd.environments.alfworld.environment import AlfworldEnvironment, AlfworldOracle
from pivotopd.environments.base import Task
from pivotopd.environments.replay import Reach
from pivotopd.errors import ArtifactError, SearchLimit
from pivotopd.records import Episode, Turn
from pivotopd.records_diagnosis import KnownMistake
from pivotopd.rollout import Job, Played
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Transcript
from tests import play

TASKS = tuple(play.environment().tasks("valid"))
WAYS: list[Reach] = ["snapshot", "replay"]


def episode(name: str, *, won: bool, turns: int, family: str = "a", group: str = "g") -> Episode:
    return Episode(
        run="test", iteration=2, episode=name, task="t", task_hash="h", family=family, group=group, sample=0,
        seed=1, episode_return=10.0 * won, won=won, score=float(won),
        termination="won" if won else "turn_limit", error=None, turns=turns, environment="e",
        data_fingerprint="d", policy="p",
    )  # fmt: skip


# ---------------------------------------------------------------------- mistakes


def played(plans: dict[str, tuple[Task, list[str]]]) -> dict[str, Transcript]:
    """Play one plan an episode."""
    jobs = [
        Job(name, task, name, index, seed_of("test", name), None)
        for index, (name, (task, _)) in enumerate(plans.items())
    ]
    answer = play.script({job.seed: plans[job.episode][1] for job in jobs})
    found: dict[str, Transcript] = {}
    for job in jobs:
        (one,) = play.player(answer, max_turns=len(plans[job.episode][1])).play([job])
        found[job.episode] = play.transcript(job.task, one)
    return found


@pytest.fixture(scope="module")
def transcripts() -> dict[str, Transcript]:
    return played(
        {
            "d two": (TASKS[0], play.lose(TASKS[0], {2, 4}, 10)),
            "c won": (TASKS[0], play.plan(TASKS[0], {2})),
            "b idle": (TASKS[1], ["look"] * 6),
            "a one": (TASKS[1], play.lose(TASKS[1], {3}, 9)),
            "e last": (TASKS[2], play.plan(TASKS[2], {3}, 4)),
        }
    )


def test_the_first_mistake_of_each_lost_episode_and_none_of_a_won_one(
    transcripts: dict[str, Transcript],
) -> None:
    assert transcripts["c won"].episode.won
    found, given_up = find_mistakes(play.environment(), transcripts.values(), limit=9)
    # Idle play makes no mistake; nothing follows a mistake on the last turn.
    assert [(one.transcript.episode.episode, one.turn) for one in found] == [("a one", 3), ("d two", 2)]
    assert given_up == 0
    for one in found:
        after = one.transcript.turns[one.turn + 1].snapshot
        before = one.transcript.turns[one.turn].snapshot
        assert after is not None
        assert before is not None
        oracle = play.environment().oracle(one.transcript.task)
        left, right = oracle.distance(before), oracle.distance(after)
        assert left is not None
        assert right is not None
        assert left < right == one.distance_after
    first, _ = find_mistakes(play.environment(), reversed(list(transcripts.values())), limit=1)
    assert first == found[:1]
    assert find_mistakes(play.environment(), transcripts.values(), limit=0) == ([], 0)


def test_mistakes_of_won_episodes_are_found_when_asked_for(transcripts: dict[str, Transcript]) -> None:
    found, _ = find_mistakes(play.environment(), transcripts.values(), limit=9, also_won=True)
    names = [(one.transcript.episode.episode, one.turn) for one in found]
    assert names == [("a one", 3), ("c won", 2), ("d two", 2)]


def test_without_stored_states_the_same_mistakes_are_found(transcripts: dict[str, Transcript]) -> None:
    bare = [
        replace(one, turns=[replace(turn, snapshot=None) for turn in one.turns])
        for one in transcripts.values()
    ]
    found, given_up = find_mistakes(play.environment(), bare, limit=9)
    assert [(one.transcript.episode.episode, one.turn) for one in found] == [("a one", 3), ("d two", 2)]
    assert given_up == 0


def test_an_episode_whose_search_is_given_up_is_counted(transcripts: dict[str, Transcript]) -> None:
    class Tired(AlfworldOracle):
        def distance(self, state: bytes) -> int | None:
            raise SearchLimit("too large")

    class TiredEnvironment(AlfworldEnvironment):
        def oracle(self, task: Task) -> AlfworldOracle:
            if task.id != TASKS[1].id:
                return super().oracle(task)
            return object.__new__(Tired)

    tired = TiredEnvironment(EnvironmentSection(prompt="compact", generated=play.GAMES))
    found, given_up = find_mistakes(tired, transcripts.values(), limit=9)
    assert [one.transcript.episode.episode for one in found] == ["d two"]
    assert given_up == 2


# ---------------------------------------------------------------------- recovery


@pytest.fixture(scope="module")
def mistakes(transcripts: dict[str, Transcript]) -> list[Mistake]:
    return find_mistakes(play.environment(), transcripts.values(), limit=9)[0]


@pytest.mark.parametrize("how", WAYS)
def test_a_replay_starts_right_after_its_mistake(mistakes: list[Mistake], how: Reach) -> None:
    for job, mistake in zip(recovery_jobs(mistakes, replays=1, seed=3, how=how), mistakes, strict=True):
        turns = mistake.transcript.turns
        assert job.start is not None
        assert list(job.start.turns) == list(turns[: mistake.turn + 1])
        env = play.environment().open()
        seen = job.start.open_at(env)
        assert seen.observation == turns[mistake.turn + 1].observation
        assert env.state_hash() == turns[mistake.turn + 1].state_hash


@pytest.mark.parametrize("how", WAYS)
def test_a_policy_that_repeats_itself_ends_as_it_did(mistakes: list[Mistake], how: Reach) -> None:
    for job, mistake in zip(recovery_jobs(mistakes, replays=1, seed=3, how=how), mistakes, strict=True):
        recorded = mistake.transcript.turns
        plan = [turn.action for turn in recorded]
        (one,) = play.player(play.script({job.seed: plan}), max_turns=len(recorded)).play([job])
        rest = recorded[mistake.turn + 1 :]
        assert one.episode.turns == len(rest)
        assert (one.episode.won, one.episode.termination) == (False, "turn_limit")
        names = ("turn", "prompt_ids", "observation", "admissible", "action", "reward", "state_hash",
                 "snapshot", "next_observation")  # fmt: skip
        for now, then in zip(one.turns, rest, strict=True):
            assert [getattr(now, name) for name in names] == [getattr(then, name) for name in names]


def test_a_policy_that_recovers_needs_the_distance_after_the_mistake(mistakes: list[Mistake]) -> None:
    jobs = recovery_jobs(mistakes, replays=2, seed=3, how="snapshot")
    plans = {}
    for job in jobs:
        assert job.start is not None
        env = play.environment().open()
        job.start.open_at(env)
        plan = ["?"] * len(job.start.turns)
        while True:
            plan.append(play.best(job.task, env))
            if env.step(plan[-1]).done:
                break
        plans[job.seed] = plan
    found = list(play.player(play.script(plans)).play(jobs))
    rate = summarise_recovery(found, replays=2)
    needed = [one.distance_after or 0 for one in mistakes]
    assert rate == RecoveryRate(2, 2, 1.0, sum(needed) / len(needed))


def test_replay_seeds_name_mistake_and_replay(mistakes: list[Mistake]) -> None:
    jobs = recovery_jobs(mistakes, replays=4, seed=3, how="replay")
    assert len({job.seed for job in jobs}) == len({job.episode for job in jobs}) == 8
    assert [job.sample for job in jobs] == [0, 1, 2, 3] * 2
    fewer = recovery_jobs(mistakes[1:], replays=2, seed=3, how="replay")
    assert [job.seed for job in fewer] == [job.seed for job in jobs[4:6]]
    assert [job.episode for job in fewer] == [job.episode for job in jobs[4:6]]


def test_each_mistake_counts_the_same_however_often_it_was_replayed() -> None:
    def one(group: str, won: bool, turns: int) -> Played:
        return Played(episode(f"{group}/{turns}", won=won, turns=turns, group=group), ())

    replays = [
        one("a", True, 4),
        one("b", False, 30),
        one("b", False, 30),
        one("b", True, 9),
        one("b", False, 3),
    ]
    assert summarise_recovery(replays, replays=4) == RecoveryRate(2, 4, (1.0 + 0.25) / 2, 6.5)
    assert summarise_recovery(replays[1:3], replays=2) == RecoveryRate(1, 2, 0.0, None)
    assert summarise_recovery([], replays=2) is None
    assert recovery_jobs([], replays=2, seed=0, how="replay") == []


# ---------------------------------------------------------------------- a stored set

BASIS = basis_of(play.environment(), "valid", 10)


def stored(mistakes: list[Mistake]) -> tuple[list[KnownMistake], list[Episode], list[Turn]]:
    known = [recorded(one, play.environment(), BASIS) for one in mistakes]
    turns = [turn for one in mistakes for turn in one.transcript.turns[: one.turn + 2]]
    return known, [one.transcript.episode for one in mistakes], turns


def test_a_stored_mistake_names_the_right_action_and_its_states(mistakes: list[Mistake]) -> None:
    for one, row in zip(mistakes, stored(mistakes)[0], strict=True):
        turns = one.transcript.turns
        assert (row.mistake, row.turn, row.action) == (
            one.transcript.episode.episode, one.turn, turns[one.turn].action,
        )  # fmt: skip
        assert row.state_hash == turns[one.turn + 1].state_hash
        assert row.distance_after == one.distance_after
        env = play.environment().open()
        env.load(one.transcript.task, turns[one.turn].snapshot or b"")
        assert row.oracle_action != row.action
        env.step(row.oracle_action or "")
        oracle = play.environment().oracle(one.transcript.task)
        assert oracle.distance(play.dumped(env)) == row.distance_before - 1


def test_a_stored_mistake_is_the_same_without_snapshots(mistakes: list[Mistake]) -> None:
    one = mistakes[0]
    turns = [replace(turn, snapshot=None) for turn in one.transcript.turns]
    bare = replace(one, transcript=replace(one.transcript, turns=turns))
    assert recorded(bare, play.environment(), BASIS) == stored(mistakes)[0][0]


def test_a_set_survives_its_rows(mistakes: list[Mistake]) -> None:
    known, episodes, turns = stored(mistakes)
    found = load_mistakes(known[::-1], episodes, turns[::-1], TASKS, "here")
    assert [(one.transcript.episode, one.turn, one.distance_after) for one in found] == [
        (one.transcript.episode, one.turn, one.distance_after) for one in mistakes
    ]
    jobs = recovery_jobs(found, replays=2, seed=0, how="replay")
    again = recovery_jobs(mistakes, replays=2, seed=0, how="replay")
    assert [(job.episode, job.seed) for job in jobs] == [(job.episode, job.seed) for job in again]
    for job in jobs:
        assert job.start is not None
        job.start.open_at(play.environment().open())  # the reached state is compared with the record


def test_a_set_of_other_games_engine_or_turn_limit_is_refused(mistakes: list[Mistake]) -> None:
    known, _, _ = stored(mistakes)
    check_basis(known, replace(BASIS, split="a name changes nothing"), "here")
    for changes in ({"environment": "x"}, {"data_fingerprint": "y" * 64}, {"max_turns": 11}):
        other = replace(BASIS, **changes)  # type: ignore[arg-type]  # fields by name
        with pytest.raises(ArtifactError, match=BASIS.fingerprint) as caught:
            check_basis(known, other, "the address")
        assert other.fingerprint in str(caught.value)
        assert str(next(iter(changes.values())))[:12] in str(caught.value)
        assert caught.value.where == "the address"
        assert caught.value.exit_code == 3


def test_a_damaged_set_is_refused(mistakes: list[Mistake]) -> None:
    known, episodes, turns = stored(mistakes)
    other = [replace(task, content_hash="other") for task in TASKS]
    with pytest.raises(ArtifactError, match="same content"):
        load_mistakes(known, episodes, turns, other, "here")
    for broken in ([], turns[1:], [replace(turn, action="?") for turn in turns]):
        with pytest.raises(ArtifactError, match="missing or are not those"):
            load_mistakes(known, episodes, broken, TASKS, "here")
    with pytest.raises(ArtifactError, match="missing or are not those"):
        load_mistakes(known, [], turns, TASKS, "here")
