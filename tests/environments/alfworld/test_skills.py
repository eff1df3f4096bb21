"""Skills by fixed rules, and made-up ones in demonstrations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pivotopd.environments.alfworld.demonstrations import demonstrations
from pivotopd.environments.alfworld.generator import PLAIN, TRAIN_SPLIT, generate_games
from pivotopd.environments.alfworld.skill_demonstrations import MOST, with_made_up_skills
from pivotopd.environments.alfworld.skills import distil
from pivotopd.environments.base import PlayedEpisode, PlayedTurn

NOTHING = "Nothing happens."


def episode(*actions: str, won: bool, refused: tuple[int, ...] = ()) -> PlayedEpisode:
    """An episode whose turns at ``refused`` are answered that nothing happens."""
    answers = [NOTHING if turn in refused else f"answer {turn}" for turn in range(len(actions))]
    seen = ["start", *answers]
    turns = tuple(PlayedTurn(seen[turn], action, committed=True) for turn, action in enumerate(actions))
    return PlayedEpisode("Your task is to: do it.", won, "won" if won else "turn_limit", turns, seen[-1])


def test_a_won_episode_tells_its_way_in_kinds_without_detours() -> None:
    won = episode(
        "go to cabinet 12", "open cabinet 12", "look", "go to shelf 1", "take mug 2 from shelf 1",
        "take mug 2 from shelf 1", "go to sinkbasin 1", "clean mug 2 with sinkbasin 1", "inventory",
        "examine mug 2", "go to cabinet 3", "move mug 2 to cabinet 3",
        won=True, refused=(5,),
    )  # fmt: skip
    assert distil(won) == (
        "go to shelf; take mug from shelf; go to sinkbasin; clean mug with sinkbasin; go to cabinet; "
        "move mug to cabinet"
    )


def test_a_place_that_was_opened_to_take_from_it_stays() -> None:
    won = episode(
        "go to safe 1",
        "open safe 1",
        "take key 1 from safe 1",
        "go to desk 1",
        "move key 1 to desk 1",
        won=True,
    )
    assert distil(won) == "go to safe; open safe; take key from safe; go to desk; move key to desk"


def test_a_lost_episode_warns_of_what_it_did_most_and_of_the_first_among_equals() -> None:
    lost = episode("go to desk 1", "look", "look", "go to desk 2", "inventory", won=False)
    assert distil(lost) == "do not repeat: go to desk"
    assert distil(replace(lost, turns=lost.turns[1:3])) == "do not repeat: look"


def test_an_episode_that_did_nothing_teaches_nothing() -> None:
    mute = replace(episode("x", won=False), turns=(PlayedTurn("start", "x", committed=False),))
    assert distil(mute) is None
    assert distil(episode("look", won=True)) is None


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_made_up_skills_are_all_that_differs(share: float) -> None:
    games = generate_games(0, TRAIN_SPLIT, 6, ("pick_and_place_simple",), PLAIN)
    rows = list(demonstrations(games, 5, hinted_share=0.3, history=3, max_turns=12))
    shown = list(with_made_up_skills(rows, 1, share))
    assert shown == list(with_made_up_skills(rows, 1, share))
    assert [replace(one, view=replace(one.view, skills=())) for one in shown] == rows
    with_some = [one for one in shown if one.view.skills]
    assert all(1 <= len(one.view.skills) <= MOST for one in with_some)
    assert len(with_some) / len(rows) == pytest.approx(share, abs=0.2)
    assert (shown == rows) == (share == 0.0)
    assert not any(letter.isdigit() for one in with_some for skill in one.view.skills for letter in skill)
