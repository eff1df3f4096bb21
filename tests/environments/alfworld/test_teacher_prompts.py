"""What a teacher is asked: all that it needs, nothing that the student does not see, fixed parts first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.alfworld.teacher_prompts import AlfworldTeacherWording
from pivotopd.environments.base import PlayedEpisode, PlayedTurn, ReplyForm, View
from pivotopd.teacher.replies import Unreadable, read_label_reply, read_query_reply

WORDING = AlfworldTeacherWording("move")
EPISODE = PlayedEpisode(
    "Your task is to: put a mug in the {sink}.",
    False,
    "turn_limit",
    (
        PlayedTurn("You are in a room {with braces}.", "go to shelf 1", True),
        PlayedTurn("You see a mug 1.", "i take it", False),
    ),
    "Nothing happens.",
)
VIEW = View("Your task is to: cool an apple.", (("You see a.", "go to fridge 1"),), 4, "It is closed.",
            ("help", "look", "open fridge 1"))  # fmt: skip


@pytest.mark.parametrize("form", ["blocks", "json"])
def test_a_labelling_prompt_holds_the_episode_and_the_format(form: ReplyForm) -> None:
    prompt = WORDING.label_prompt(EPISODE, 3, form)
    for part in (
        "episode_summary", "episode_lesson", "step_lessons", "correct_action", "at most 3 turns",
        "Task: put a mug in the {sink}.",
        "Turn 0. It saw: You are in a room {with braces}.\n  It did: go to shelf 1",
        "Turn 1. It saw: You see a mug 1.\n  It did: (no command in the required form) i take it",
        "After the last turn it saw: Nothing happens.",
        "not done when the last turn was used up", "all of 0 to 1",
    ):  # fmt: skip
        assert part in prompt
    assert ("<correct_action step=" in prompt) == (form == "blocks")
    assert (
        prompt.index("Form of the answer")
        < prompt.index("Task:")
        < prompt.index("Turn 0")
        < prompt.index("Outcome")
    )
    assert prompt.rstrip().endswith("Answer in the form above.")


@pytest.mark.parametrize("form", ["blocks", "json"])
def test_episodes_share_the_beginning_that_a_server_can_keep(form: ReplyForm) -> None:
    other = replace(EPISODE, instruction="another", won=True, turns=EPISODE.turns[:1], last_observation=None)
    prompts = [WORDING.label_prompt(one, 3, form) for one in (EPISODE, other)]
    same = [one == other for one, other in zip(*prompts, strict=False)]
    shared = prompts[0][: same.index(False)]
    assert shared.endswith("=== The episode ===\nTask: ")
    assert len(shared) > 1500
    assert "the task was done." in prompts[1]
    assert "Turns that you may name: 0." in prompts[1]


def test_the_form_itself_is_not_read_as_an_answer() -> None:
    for prompt in (WORDING.label_prompt(EPISODE, 3, "blocks"), WORDING.label_prompt(EPISODE, 3, "json")):
        with pytest.raises(Unreadable):
            read_label_reply(prompt)


def test_a_query_shows_what_the_student_sees_and_nothing_else() -> None:
    hidden = replace(VIEW, hint="HINT", lesson="LESSON")
    prompt = WORDING.query_prompt(hidden)
    assert prompt == WORDING.query_prompt(VIEW)
    for part in (
        "Task: cool an apple.", "Turn 3. It saw: You see a.\n  It did: go to fridge 1",
        "Turn 4. The agent sees: It is closed.", "Admissible commands: look; open fridge 1\n",
    ):  # fmt: skip
        assert part in prompt
    assert "HINT" not in prompt
    assert "LESSON" not in prompt
    assert read_query_reply(prompt) == "the command", "the form has one block"


@pytest.mark.parametrize(
    ("style", "verb"), [("move", "move OBJECT to PLACE"), ("put", "put OBJECT in/on PLACE")]
)
def test_the_rules_speak_the_engines_commands(style: WordingStyle, verb: str) -> None:
    one = AlfworldTeacherWording(style)
    assert verb in one.label_prompt(EPISODE, 1, "blocks")
    assert verb in one.query_prompt(VIEW)
