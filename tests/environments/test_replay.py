"""Reaching a recorded state: both ways give the same, and any difference is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pivotopd.environments.base import EnvSpec
from pivotopd.environments.replay import Reach, reach
from pivotopd.errors import EnvironmentFault, ReplayDivergence
from pivotopd.records import Turn
from tests import play

TASK, OTHER = play.environment().tasks("train")[:2]
WAYS: list[Reach] = ["snapshot", "replay"]


@pytest.fixture(scope="module")
def turns() -> Sequence[Turn]:
    (job,) = play.jobs_of([TASK])
    (result,) = play.player(play.script({job.seed: play.plan(TASK)})).play([job])
    return result.turns


@pytest.mark.parametrize("how", WAYS)
def test_every_recorded_state_is_reached(turns: Sequence[Turn], how: Reach) -> None:
    for turn in turns:
        env = play.environment().open()
        result = reach(env, TASK, 0, turns, turn.turn, how)
        assert (result.observation, result.admissible) == (turn.observation, turn.admissible)
        assert (env.dump(), env.state_hash()) == (turn.snapshot, turn.state_hash)
        after = env.step(turn.action)
        assert (after.observation, after.reward) == (turn.next_observation, turn.reward)


@pytest.mark.parametrize("how", WAYS)
def test_the_state_after_the_last_turn_is_reached(turns: Sequence[Turn], how: Reach) -> None:
    result = reach(play.environment().open(), TASK, 0, turns, len(turns), how)
    assert result.won
    assert result.observation == turns[-1].next_observation


def test_a_snapshot_needs_no_earlier_turns_and_a_replay_uses_no_snapshot(turns: Sequence[Turn]) -> None:
    forgotten = [replace(turn, observation="?", action="?") for turn in turns[:3]]
    rows = [*forgotten, *turns[3:]]
    reach(play.environment().open(), TASK, 0, rows, 3, "snapshot")
    with pytest.raises(ReplayDivergence):
        reach(play.environment().open(), TASK, 0, rows, 3, "replay")
    broken = [replace(turn, snapshot=b"?") for turn in turns]
    reach(play.environment().open(), TASK, 0, broken, 3, "replay")
    with pytest.raises(EnvironmentFault, match="damaged"):
        reach(play.environment().open(), TASK, 0, broken, 3, "snapshot")


def test_without_a_stored_state_the_actions_are_replayed(turns: Sequence[Turn]) -> None:
    rows = [replace(turn, snapshot=None) for turn in turns]
    env = play.environment().open()
    reach(env, TASK, 0, rows, 3, "snapshot")
    assert env.state_hash() == turns[3].state_hash
    # The stock engine's rows hold states for the oracle that the engine cannot take back.
    env.spec = EnvSpec("alfworld", "stock", determinism="exact", fork="replay")
    reach(env, TASK, 0, [replace(turn, snapshot=b"for the oracle") for turn in turns], 3, "snapshot")
    assert env.state_hash() == turns[3].state_hash


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("change", "named"), [({"observation": "Something else."}, "observation of turn 2"),
                                               ({"state_hash": "0"}, "state before turn 2")])  # fmt: skip
def test_a_record_that_differs_is_told(
    turns: Sequence[Turn], how: Reach, change: dict[str, str], named: str
) -> None:
    rows = [*turns[:2], replace(turns[2], **change), *turns[3:]]  # type: ignore[arg-type]  # by name
    with pytest.raises(ReplayDivergence, match=named) as caught:
        reach(play.environment().open(), TASK, 0, rows, 2, how)
    assert (caught.value.mend or caught.value.where) is not None


def test_an_earlier_observation_and_the_last_answer_are_compared(turns: Sequence[Turn]) -> None:
    rows = [replace(turns[0], observation="Nothing happens."), *turns[1:]]
    with pytest.raises(ReplayDivergence, match=r"turn 0 differs: recorded 'Nothing happens\.'"):
        reach(play.environment().open(), TASK, 0, rows, 2, "replay")
    rows = [*turns[:-1], replace(turns[-1], next_observation="No.")]
    with pytest.raises(ReplayDivergence, match=f"turn {len(turns)}"):
        reach(play.environment().open(), TASK, 0, rows, len(turns), "replay")


def test_a_state_of_another_game_is_refused(turns: Sequence[Turn]) -> None:
    with pytest.raises(EnvironmentFault, match="snapshot is of"):
        reach(play.environment().open(), OTHER, 0, turns, 2, "snapshot")
