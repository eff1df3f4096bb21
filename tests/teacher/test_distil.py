"""A teacher distils skills: what is asked, what a reply becomes, what is asked again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pivotopd.errors import TeacherError
from pivotopd.teacher.base import Transcript
from pivotopd.teacher.oracle import OracleTeacher
from pivotopd.teacher.replies import SKILL_CHARACTERS, Unreadable, read_analysis_reply, read_skill_reply
from tests import play
from tests.teacher.test_llm import teacher
from tests.test_recovery import episode

GOOD = '```json\n{"skill": "Search closed  places\\nfirst."}\n```'


@pytest.fixture(scope="module")
def idle() -> Transcript:
    return episode(["look", "look", "inventory"])


@pytest.fixture(scope="module")
def empty(idle: Transcript) -> Transcript:
    return Transcript(idle.task, replace(idle.episode, episode="empty"), ())


def test_a_reply_becomes_a_skill_on_one_line(idle: Transcript, empty: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: GOOD)
    assert one.distil([empty, idle]) == [None, "Search closed places first."]
    (ask,) = chat.asks
    assert "It did: inventory" in ask.prompt
    assert "the task was not done when the last turn was used up" in ask.prompt
    assert ask.json_prompt is None


def test_a_skill_copied_from_the_form_is_none(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: '{"skill": "<the skill>"}')
    assert one.distil([idle]) == [None]
    assert '{"skill": "<the skill>"}' in chat.asks[0].prompt
    assert one.counts["teacher_sentences_copied"] == 1


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
    oracle = OracleTeacher(play.environment(), True, 5)
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


# ---------------------------------------------------------------------- analysis in hindsight

ANALYSIS = (
    '{"episode_summary": "It idled.", "episode_skill": "Go somewhere.", '
    '"step_skills": {"1": "Open it.", "0": "Take it.", "1": "x", "z": "y"}}'
)


def test_an_analysis_becomes_skills_of_the_episode_and_its_turns(idle: Transcript, empty: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: "no" if number == 0 else ANALYSIS, 1)
    none, found = one.analyse([empty, idle])
    assert none.unread == "no turn was played"
    assert (found.candidates, found.lesson, found.summary) == ((), "Go somewhere.", "It idled.")
    assert found.step_lessons == ((1, "x"),), "at most m, and JSON keeps the last of equal keys"
    assert len(chat.asks) == 2
    assert "at most 1 turns" in chat.asks[0].prompt
    assert "Turns that you may name: all of 0 to 2." in chat.asks[0].prompt


@pytest.mark.parametrize(
    ("text", "skill", "steps"),
    [
        ('{"episode_skill": "a", "step_skills": [{"step": 2, "skill": "b"}, 3, {"step": 2, "skill": "c"}]}',
         "a", ((2, "b"),)),
        ('{"step_skills": {"0": "b"}}', None, ((0, "b"),)),
        ('{"episode_skill": "form"} {"episode_skill": "real", "step_skills": {}}', "real", ()),
        ('{"episode_skill": "' + "x" * 601 + '", "step_skills": {"0": "b"}}', None, ((0, "b"),)),
    ],
)  # fmt: skip
def test_analyses_are_read(text: str, skill: str | None, steps: tuple[tuple[int, str], ...]) -> None:
    reply = read_analysis_reply(text)
    assert (reply.episode_lesson, reply.step_lessons, reply.correct_actions) == (skill, steps, ())


@given(st.text() | st.text(alphabet='{}"episod_kl:, \\'))
@example('{"episode_skill": 3}')
@example('{"episode_skill": null, "step_skills": {"a": 1}}')
@example("")
def test_every_text_is_an_analysis_or_refused(text: str) -> None:
    try:
        reply = read_analysis_reply(text)
    except Unreadable:
        return
    assert reply.episode_lesson or reply.step_lessons


def test_the_oracle_analyses_by_rules() -> None:
    oracle = OracleTeacher(play.environment(), True, 5)
    lost = episode(play.lose(play.environment().tasks("train")[0], {3}, 8))
    (found,), (labels,) = oracle.analyse([lost]), oracle.read([lost])
    assert found.candidates == ()
    assert found.lesson == oracle.distil([lost])[0]
    assert found.step_lessons == tuple((one.turn, one.gold_action) for one in labels.candidates)
    assert 3 in dict(found.step_lessons)
