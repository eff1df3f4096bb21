"""A teacher distils skills: what is asked, what a reply becomes, what is asked again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import TeacherError
from pivotopd.teacher.base import Transcript
from pivotopd.teacher.oracle import OracleTeacher
from pivotopd.teacher.replies import SKILL_CHARACTERS, Unreadable, read_skill_reply
from tests import play
from tests.teacher.test_llm import teacher
from tests.test_recovery import episode

GOOD = '```json\n{"skill": "Search closed  places\\nfirst."}\n```'


@pytest.fixture(scope="module")
def idle() -> Transcript:
    return episode(["look", "look", "inventory"])


@pytest.fixture(scope="module")
def empty(idle: Transcript) -> Transcript:
    return Transcript(idle.task, idle.episode, ())


def test_a_reply_becomes_a_skill_on_one_line(idle: Transcript, empty: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: GOOD)
    assert one.distil([empty, idle]) == [None, "Search closed places first."]
    (ask,) = chat.asks
    assert "It did: inventory" in ask.prompt
    assert "the task was not done when the last turn was used up" in ask.prompt
    assert ask.json_prompt is None


def test_an_unreadable_reply_is_asked_for_once_more(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: "no" if number == 0 else GOOD)
    assert one.distil([idle]) == ["Search closed places first."]
    assert len(chat.asks) == 2
    assert "An earlier answer" in chat.asks[1].prompt
    lost, silent = teacher(lambda prompt, number: "no")
    assert lost.distil([idle]) == [None]
    assert len(silent.asks) == 2
    assert lost.counts["teacher_replies_unreadable"] == 2


def test_a_teacher_that_never_answers_stops_the_stage(idle: Transcript) -> None:
    one, _ = teacher(lambda prompt, number: None)
    with pytest.raises(TeacherError):
        one.distil([idle])


def test_the_oracle_distils_by_the_environment_s_rules(idle: Transcript, empty: Transcript) -> None:
    oracle = OracleTeacher(play.environment(), True, play.HISTORY, 5)
    won = episode(play.plan(play.environment().tasks("train")[0]), "won")
    found = oracle.distil([won, idle, empty])
    assert found[1:] == ["do not repeat: look", None]
    assert found[0] is not None
    assert "take " in found[0]
    assert not any(letter.isdigit() for letter in found[0])


@pytest.mark.parametrize(
    ("text", "skill"),
    [
        ('{"skill": "a"} then {"skill": "b"}', "b"),
        ("<think>{\"skill\": \"x\"}</think>{'skill': 'it does'}", "it does"),
        ('{"other": 1, "skill": "a",}', "a"),
    ],
)
def test_skills_are_read_where_they_stand(text: str, skill: str) -> None:
    assert read_skill_reply(text) == skill


@pytest.mark.parametrize(
    "text", ["", "  ", "a skill", '{"skill": ""}', '{"skill": 3}', '{"skill": "' + "x" * 601 + '"}']
)
def test_what_is_no_skill_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        read_skill_reply(text)


@given(st.text() | st.text(alphabet='{}"skil:, \\'))
def test_every_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_skill_reply(text)
    except Unreadable:
        return
    assert 0 < len(found) <= SKILL_CHARACTERS
    assert "\n" not in found
