"""Replies as they come from language models: read where they mean something, refused with a reason else."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pivotopd.records import Lesson, to_table
from pivotopd.teacher.json_text import objects
from pivotopd.teacher.replies import LONGEST, LabelReply, Unreadable, read_label_reply, read_query_reply

REAL = {
    "episode_summary": "It took the wrong mug.",
    "episode_lesson": "Look into the fridge first.",
    "step_lessons": {"3": "Open the fridge.", "7": "Put it down."},
}
BLOCKS = (
    '<correct_action step="3">open fridge 1</correct_action>\n'
    '<correct_action step="7">go to sinkbasin 1</correct_action>'
)
GOLD = ((3, "open fridge 1"), (7, "go to sinkbasin 1"))
LOOK = '<correct_action step="1">look</correct_action>'
DECOY = {"episode_summary": "what happened", "episode_lesson": "the advice", "step_lessons": {"0": "example"}}


def fenced(value: object = REAL, tag: str = "json") -> str:
    return f"```{tag}\n{json.dumps(value, indent=2)}\n```"


def text(blocks: str = BLOCKS, value: object = REAL) -> str:
    return f"{fenced(value)}\n{blocks}"


def is_the_real_one(reply: LabelReply) -> bool:
    return (
        reply.episode_summary == REAL["episode_summary"]
        and reply.episode_lesson == REAL["episode_lesson"]
        and reply.step_lessons == ((3, "Open the fridge."), (7, "Put it down."))
        and reply.correct_actions == GOLD
    )


BARE = json.dumps(REAL)


@pytest.mark.parametrize(
    "reply",
    [
        text(),
        f"{BARE}\n{BLOCKS}",
        f"{BLOCKS}\n{BARE}",
        f"{fenced(tag='')}\n{BLOCKS}",
        f"Sure! Here is what I found {{as asked}}:\n\n{text()}\n\nI hope {{this}} helps.",
        f"<think>\nMaybe {json.dumps(DECOY)}? {LOOK}\n</think>\n{text()}",
        f"Maybe {json.dumps(DECOY)}, no.\n</think>\n\n{text()}",  # the server ate the opening tag
        f"The form is {json.dumps(DECOY)}. Now mine:\n{text()}",
        f'{{"note": "first {{"}} {json.dumps({"other": [1, 2]})}\n{text()}',
        text().replace("Put it down.\"", "Put it down.\","),  # comma before a bracket
        text().replace('."\n}', '.",\n}'),
        f"{REAL!s}\n{BLOCKS}",  # as Python writes it: single quotes
        f'{json.dumps({"result": REAL})}\n{BLOCKS}',  # wrapped
        text(value={**REAL, "confidence": 0.9, "notes": ["x"]}),
        text(value={**REAL, "step_lessons": [[3, "Open the fridge."], ["step 7", "Put it down."]]}),
        text(value={**REAL, "step_lessons": [{"step": 3, "lesson": "Open the fridge."},
                                             {"step": "7", "lesson": "Put it\n down."}]}),
        text(value={**REAL, "step_lessons": {"Step 3": "Open the fridge.", " 7 ": "Put it down."}}),
        text(BLOCKS.replace('"', "'")), text(BLOCKS.replace('"', "")), text(BLOCKS.upper()).replace(
            "OPEN FRIDGE", "open fridge").replace("GO TO SINKBASIN", "go to sinkbasin"),
        text(BLOCKS.replace(">open fridge 1<", '>\n  "open fridge 1"\n<')),
        text(BLOCKS.replace(">open fridge 1<", "><action>open fridge 1</action><")),
        text(BLOCKS + '\n<correct_action step="3">look</correct_action>'),  # the first of duplicates
        text('<correct_action step="1">never closed\n' + BLOCKS),
        text(BLOCKS + '\n<correct_action step="9">cut o'),
        text(BLOCKS + '\n<correct_action step="9"> </correct_action>'),
        text('<correct_action step="N">action</correct_action>' + BLOCKS),
        text('<correct_action step="-1">look</correct_action>' + BLOCKS),
        text('<correct_action step="' + "9" * 40 + '">look</correct_action>' + BLOCKS),
    ],
)  # fmt: skip
def test_a_reply_is_read_however_it_is_wrapped(reply: str) -> None:
    assert is_the_real_one(read_label_reply(reply)), read_label_reply(reply)


def test_the_json_form_holds_its_actions() -> None:
    steps = [
        {"step": 3, "lesson": "Open the fridge.", "correct_action": "open fridge 1"},
        {"step": 7, "lesson": "Put it down.", "correct_action": "go to sinkbasin 1"},
    ]
    assert is_the_real_one(read_label_reply(json.dumps({**REAL, "step_lessons": steps})))
    by_key = {str(one["step"]): {key: one[key] for key in ("lesson", "correct_action")} for one in steps}
    assert is_the_real_one(read_label_reply(json.dumps({**REAL, "step_lessons": by_key})))
    named = {"3": "open fridge 1", "7": "go to sinkbasin 1"}
    assert is_the_real_one(read_label_reply(json.dumps({**REAL, "correct_actions": named})))


def test_an_action_without_a_step_lesson_counts_and_a_lesson_without_an_action_stays() -> None:
    reply = read_label_reply(text('<correct_action step="5">look</correct_action>'))
    assert reply.correct_actions == ((5, "look"),)
    assert [step for step, _ in reply.step_lessons] == [3, 7]


def test_a_reply_that_names_no_action_is_a_lesson_only() -> None:
    reply = read_label_reply(fenced({**REAL, "step_lessons": {}}))
    assert (reply.correct_actions, reply.step_lessons) == ((), ())
    assert reply.episode_lesson == REAL["episode_lesson"]


def test_actions_alone_are_read() -> None:
    reply = read_label_reply(f"I will not write JSON.\n{BLOCKS}")
    assert (reply.correct_actions, reply.episode_lesson) == (GOLD, None)


def test_the_order_is_the_replys() -> None:
    late_first = "\n".join(reversed(BLOCKS.splitlines()))
    assert [step for step, _ in read_label_reply(text(late_first)).correct_actions] == [7, 3]


@pytest.mark.parametrize("lesson", ["", "  ", None, "None", "n/a", "...", 7, ["x"], {"a": 1}])
def test_what_is_no_lesson_is_none(lesson: object) -> None:
    assert read_label_reply(text(value={**REAL, "episode_lesson": lesson})).episode_lesson is None


def test_lessons_are_one_line() -> None:
    value = {**REAL, "episode_lesson": "Look \n\n first.\t"}
    assert read_label_reply(text(value=value)).episode_lesson == "Look first."


def test_another_language_is_read_as_it_is() -> None:
    value = {**REAL, "episode_lesson": "先看冰箱。", "step_lessons": {"3": "Открой холодильник."}}
    reply = read_label_reply(f"好的：\n{fenced(value)}\n{BLOCKS}")
    assert (reply.episode_lesson, reply.step_lessons) == ("先看冰箱。", ((3, "Открой холодильник."),))
    assert reply.correct_actions == GOLD


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "empty"), (" \n\t", "empty"),
        ("I am sorry, I cannot help with that.", "neither"),
        ("Es tut mir leid, das weiß ich nicht.", "neither"),
        ("<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>", "neither"),
        ('{"answer": 42}', "neither"), ("[1, 2]", "neither"), ("{}", "neither"),
        (text()[:60], "neither"),  # cut inside the JSON
        (f"<think>{text()}", "neither"),  # cut inside the reasoning
        ("x" * (LONGEST + 1), "characters"), (text() + " " * 1_000_000, "characters"),
        ("{" * 100_000, "neither"), ('{"a":' * 40_000, "neither"), ("{'" * 100_000, "neither"),
        ('{"episode_lesson":' * 11_000, "neither"), ("<correct_action step=1>" * 8_000, "neither"),
        ('{"episode_lesson": ' + "9" * 9_000 + "}", "neither"),  # a number that Python does not convert
    ],
)  # fmt: skip
def test_what_says_nothing_is_refused_with_a_reason(reply: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_label_reply(reply)


def test_nothing_is_evaluated() -> None:
    value = "{'episode_lesson': __import__('os').getcwd(), 'step_lessons': {}}"
    with pytest.raises(Unreadable):
        read_label_reply(value)
    reply = read_label_reply(text(value={**REAL, "episode_lesson": "{{ 7 * 7 }}"}))
    assert reply.episode_lesson == "{{ 7 * 7 }}"


PIECES = st.sampled_from(
    [
        '{"episode_lesson": "x"', '"step_lessons": {', '"3":', "'", '"', "}", "]", ",", "{", "[", "\\",
        "\\u12", "```json", "</think>", "<think>", '<correct_action step="3">', "<correct_action>",
        "</correct_action>", "look", "\ud800", "\x00", "é", "null", "NaN", "1e999", " ", "\n",
    ]
)  # fmt: skip
ANY = st.one_of(st.text(st.characters()), st.lists(PIECES, max_size=40).map("".join))


@settings(deadline=None, max_examples=300)
@given(ANY)
@example('{"episode_lesson": "\\ud800", "step_lessons": {"3": "\\udfff"}}')
@example(
    '{"episode_lesson": "x", "step_lessons": {"3": "\ud800"}}<correct_action step=3>\ud800</correct_action>'
)
def test_every_text_is_a_reply_or_a_reason(reply: str) -> None:
    try:
        read = read_label_reply(reply)
    except Unreadable:
        return
    assert all(step >= 0 and sentence for step, sentence in (*read.step_lessons, *read.correct_actions))
    row = Lesson(
        "r", 0, "e", read.episode_lesson, read.episode_summary, [step for step, _ in read.step_lessons],
        [said for _, said in read.step_lessons], None, "t", None, None,
    )  # fmt: skip
    assert to_table(Lesson, [row]).num_rows == 1


@settings(deadline=None, max_examples=300)
@given(ANY)
def test_every_text_is_an_action_or_a_reason(reply: str) -> None:
    try:
        action = read_query_reply(reply)
    except Unreadable:
        return
    assert action == action.encode().decode().strip()


@pytest.mark.parametrize(
    "reply",
    [
        "<correct_action>open fridge 1</correct_action>",
        f"First I thought of {LOOK}, but\n<correct_action>open fridge 1</correct_action>",
        f"<think>{LOOK}</think> <correct_action>open fridge 1</correct_action> bye",
        "hm <correct_action>look</correct_action></think><correct_action>open fridge 1</correct_action>",
        '<correct_action step="4">\n`open fridge 1`\n</correct_action>',
        "open fridge 1", "<think>x</think>\nopen fridge 1\n",
    ],
)  # fmt: skip
def test_a_query_is_answered_by_its_last_block_or_a_bare_line(reply: str) -> None:
    assert read_query_reply(reply) == "open fridge 1"


@pytest.mark.parametrize("reply", ["", "two\nlines", "<html>502</html>", "<think>open fridge 1", "x" * 301])
def test_a_query_without_an_action(reply: str) -> None:
    with pytest.raises(Unreadable):
        read_query_reply(reply)


def test_objects_are_found_in_order_and_without_those_inside() -> None:
    found = list(objects('{"k": {"k": 1}} and {"k": 2} {"other": 3}', ["k"]))
    assert found == [{"k": {"k": 1}}, {"k": 2}]


def test_apostrophes_survive_the_repair() -> None:
    found = list(objects("{'k': 'don''t', 'l': 'it\\'s \"so\"', \"m\": [1, 2,], }", ["k"]))
    assert found == [{"k": "don''t", "l": 'it\'s "so"', "m": [1, 2]}]
