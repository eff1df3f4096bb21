"""A language model as a teacher, its answers scripted: what it is asked, what its replies become."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
import pytest

from pivotopd.config import RunConfig
from pivotopd.errors import TeacherError
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.records import Lesson, from_table, to_table
from pivotopd.teacher.base import Query, Reading, Transcript
from pivotopd.teacher.chat import Answer, Ask
from pivotopd.teacher.endpoint import EndpointChat
from pivotopd.teacher.llm import LlmTeacher
from pivotopd.teacher.model_chat import ModelChat, Speaker
from pivotopd.teacher.oracle import view_of
from pivotopd.teacher.pivots import labels_of, lesson_of
from pivotopd.teacher.registry import make_teacher
from pivotopd.teacher.replies import label_schema
from pivotopd.teacher_section import EndpointSection, OracleSection, SelfSection
from tests import play
from tests.test_recovery import episode

Reply = Callable[[str, int], str | None]


@dataclass
class Scripted:
    """Answers with a function of the prompt and of how often it was asked."""

    reply: Reply
    name: str = "scripted"
    where: str = "here"
    spent: Counts = field(default_factory=Counts)
    asks: list[Ask] = field(default_factory=list)

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        found = []
        for one in asks:
            text = self.reply(one.prompt, len(self.asks))
            self.asks.append(one)
            self.spent += Counts(teacher_calls=1)
            found.append(Answer(one.prompt, text, None if text is not None else "no luck"))
        return found


def teacher(reply: Reply, m: int = 5) -> tuple[LlmTeacher, Scripted]:
    chat = Scripted(reply)
    return LlmTeacher(play.environment(), chat, m), chat


def told(*actions: tuple[object, str], lesson: str | None = "Look first.") -> str:
    value = {"episode_summary": "It idled.", "episode_lesson": lesson, "step_lessons": {"1": "Go."}}
    blocks = "".join(f'<correct_action step="{step}">{action}</correct_action>' for step, action in actions)
    return f"```json\n{json.dumps(value)}\n```\n{blocks}"


@pytest.fixture(scope="module")
def idle() -> Transcript:
    return episode(["look", "look", "inventory"])


def place(transcript: Transcript, turn: int) -> str:
    """An admissible walk at a turn."""
    return next(one for one in transcript.turns[turn].admissible or () if one.startswith("go to "))


def test_a_reply_becomes_candidates_and_a_lesson(idle: Transcript) -> None:
    walk = place(idle, 1)
    reply = told(
        (1, f"{walk.replace('go to', 'Go to the')}."), (0, "look"), (2, "fly away"), (7, "look"), ("x", "y")
    )
    one, chat = teacher(lambda prompt, number: reply)
    (reading,) = one.read([idle])
    assert [(c.turn, c.gold_action) for c in reading.candidates] == [(1, walk), (0, "look"), (2, None)]
    assert (reading.lesson, reading.summary, reading.step_lessons) == (
        "Look first.",
        "It idled.",
        ((1, "Go."),),
    )
    assert (reading.raw_reply, reading.unread) == (reply, None)
    assert reading.prompt_hash == sha256(chat.asks[0].prompt.encode()).hexdigest()
    assert one.counts == {
        "teacher_replies_unreadable": 0, "teacher_replies_cut": 0, "teacher_sentences_copied": 0,
        "teacher_episodes_unread": 0, "teacher_queries_unread": 0, "teacher_candidates_ineligible": 1,
        "teacher_actions_unresolved": 1,
    }  # fmt: skip
    assert one.spent == Counts(teacher_calls=1)
    labels = labels_of(reading, idle.turns, play.environment().wording, one.name, 5)
    assert [(label.turn, label.reason) for label in labels] == [
        (0, "agrees"),
        (1, "pivotal"),
        (2, "unresolved"),
    ]
    row = lesson_of(reading, idle.episode, one.name)
    assert from_table(Lesson, to_table(Lesson, [row]), "here") == [row]
    assert (row.lesson, row.step_turns, row.step_lessons) == ("Look first.", [1], ["Go."])


def test_the_request_tells_the_episode_in_both_forms(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: told(), m=3)
    one.read([idle])
    (ask,) = chat.asks
    for turn in idle.turns:
        assert turn.observation in ask.prompt
        assert f"It did: {turn.action}" in ask.prompt
    assert "at most 3 turns" in ask.prompt
    assert idle.turns[-1].next_observation is not None
    assert idle.turns[-1].next_observation in ask.prompt
    assert ask.schema == label_schema(3)
    assert ask.json_prompt is not None
    assert ask.json_prompt != ask.prompt


def test_an_episode_without_any_candidate_keeps_its_lesson(idle: Transcript) -> None:
    one, _ = teacher(lambda prompt, number: told())
    (reading,) = one.read([idle])
    assert labels_of(reading, idle.turns, play.environment().wording, one.name, 5) == []
    assert lesson_of(reading, idle.episode, one.name).lesson == "Look first."


def test_a_reply_that_was_cut_is_counted_and_the_reason_says_so(idle: Transcript) -> None:
    @dataclass
    class Cutting(Scripted):
        def ask(self, asks: Sequence[Ask]) -> list[Answer]:
            return [replace(answer, cut=True) for answer in super().ask(asks)]

    for reply, reason in ((told(), None), ('{"episode_lesson": "Loo', "cut at teacher.reply_tokens")):
        chat = Cutting(lambda prompt, number, reply=reply: reply)  # type: ignore[misc]  # a default binds it
        one = LlmTeacher(play.environment(), chat, 5)
        (reading,) = one.read([idle])
        assert one.counts["teacher_replies_cut"] == len(chat.asks) == (1 if reason is None else 2)
        assert (reading.unread is None) == (reason is None), "what can be read counts, cut or not"
        assert (reason or "") in (reading.unread or "")
        assert (reason or "") in chat.asks[-1].prompt


def test_what_is_copied_from_the_form_is_no_lesson(idle: Transcript) -> None:
    value = {
        "episode_summary": "What happened, in one or two sentences",
        "episode_lesson": "The advice, in one or two sentences that speak to the agent.",
        "step_lessons": {"0": "one short imperative sentence", "1": "One short, imperative sentence"},
    }
    one, chat = teacher(lambda prompt, number: json.dumps(value))
    (reading,) = one.read([idle])
    for sentence in list(value.values())[:2]:
        assert str(sentence).strip(".").lower() in chat.asks[0].prompt.lower(), "the form's own words"
    assert (reading.unread, reading.lesson, reading.summary) == (None, None, None)
    assert reading.step_lessons == ((1, "One short, imperative sentence"),)
    assert one.counts["teacher_sentences_copied"] == 3


def test_a_schema_bounds_all_that_a_model_could_repeat_without_end() -> None:
    def unbounded(schema: object) -> list[object]:
        if not isinstance(schema, dict):
            return []
        bound = {"string": "maxLength", "array": "maxItems"}.get(str(schema.get("type")))
        found = [schema] if bound is not None and bound not in schema else []
        return found + [deeper for value in schema.values() for deeper in unbounded(value)]

    schema = label_schema(3)
    assert unbounded({"type": "array", "items": {"type": "string"}}) != []
    assert unbounded(schema) == []
    assert schema["properties"]["step_lessons"]["maxItems"] == 3


def test_m_keeps_the_first_of_the_reply(idle: Transcript) -> None:
    one, _ = teacher(
        lambda prompt, number: told((2, "look"), (9, "look"), (1, place(idle, 1)), (0, "look")), m=2
    )
    (reading,) = one.read([idle])
    labels = labels_of(reading, idle.turns, play.environment().wording, one.name, one.max_candidates)
    assert [label.turn for label in labels] == [1, 2]


def test_an_unreadable_reply_is_asked_for_once_more(idle: Transcript) -> None:
    other = episode(["inventory"], "f")
    one, chat = teacher(lambda prompt, number: "what?" if number == 0 else told((0, "look")))
    first, second = one.read([idle, other])
    assert len(chat.asks) == 3
    assert chat.asks[2].prompt.startswith(chat.asks[0].prompt), "the shared beginning stays"
    assert "could not be used: the reply holds neither" in chat.asks[2].prompt
    assert (first.unread, second.unread) == (None, None)
    assert first.prompt_hash == sha256(chat.asks[2].prompt.encode()).hexdigest()
    assert one.counts["teacher_replies_unreadable"] == 1


def test_after_a_second_one_the_episode_has_no_signal_and_the_reply_is_kept(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: f"what? {number} \ud800")
    (reading,) = one.read([idle])
    assert len(chat.asks) == 2
    assert reading.candidates == ()
    assert reading.lesson is None
    assert reading.raw_reply == "what? 1 \\ud800"
    assert "neither" in (reading.unread or "")
    assert (one.counts["teacher_replies_unreadable"], one.counts["teacher_episodes_unread"]) == (2, 1)
    row = lesson_of(reading, idle.episode, one.name)
    assert from_table(Lesson, to_table(Lesson, [row]), "here") == [row]


def test_a_request_that_fails_costs_its_own_episode_only(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: None if number == 0 else told())
    failed, read = one.read([idle, episode(["inventory"], "f")])
    assert (failed.unread, failed.raw_reply) == ("no luck", None)
    assert read.lesson == "Look first."
    assert len(chat.asks) == 2, "no second try: the chat has tried"


def test_where_the_second_try_fails_the_first_reply_and_its_reason_stay(idle: Transcript) -> None:
    one, _ = teacher(lambda prompt, number: "what?" if number == 0 else None)
    (reading,) = one.read([idle])
    assert reading.raw_reply == "what?"
    assert "neither" in (reading.unread or "")


def test_where_no_request_is_answered_the_stage_ends(idle: Transcript) -> None:
    one, _ = teacher(lambda prompt, number: None)
    with pytest.raises(TeacherError, match=r"none of 2 requests to the teacher was answered.*no luck"):
        one.read([idle, idle])
    with pytest.raises(TeacherError):
        one.next_actions([query(idle)])
    answered, _ = teacher(lambda prompt, number: told() if number == 0 else None)
    answered.read([idle])
    assert answered.next_actions([query(idle)]) == [None], "it answers, only not this time"


def test_an_episode_without_a_turn_is_not_asked_about(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: told())
    empty = replace(idle, turns=(), episode=replace(idle.episode, episode="empty"))
    assert one.read([empty]) == [Reading((), unread="no turn was played")]
    assert [reading.unread for reading in one.read([empty, idle])] == ["no turn was played", None]
    assert len(chat.asks) == 1
    assert one.read([]) == []


# ------------------------------------------------------------------ recovery queries


def query(transcript: Transcript, turn: int = 1) -> Query:
    return Query(transcript.task, view_of(transcript.turns, turn), b"the state, which it must not see")


def test_a_query_is_answered_with_an_admissible_action_or_none(idle: Transcript) -> None:
    walk = place(idle, 1)
    replies = [
        f"So: <correct_action>{walk.upper()}</correct_action>",
        "<correct_action>fly</correct_action>",
        "look",
    ]
    one, chat = teacher(lambda prompt, number: replies[number])
    assert one.next_actions([query(idle), query(idle), query(idle, 2)]) == [walk, None, "look"]
    assert one.counts["teacher_actions_unresolved"] == 1
    assert chat.asks[0].schema is None
    for pair in query(idle).view.history:
        assert pair[0] in chat.asks[0].prompt


def test_an_unreadable_answer_to_a_query_is_asked_for_once_more(idle: Transcript) -> None:
    one, chat = teacher(lambda prompt, number: "what\nwhat" if number in (0, 1, 3) else "look")
    assert one.next_actions([query(idle), query(idle), query(idle, 2)]) == [None, "look", "look"]
    assert len(chat.asks) == 5
    assert (one.counts["teacher_replies_unreadable"], one.counts["teacher_queries_unread"]) == (3, 1)


# ------------------------------------------------------------------ the student as its own teacher


@dataclass
class Engine:
    """Answers with a text that depends on seed and prompt; keeps its requests."""

    text: str
    requests: list[Request] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        self.requests += requests
        ids = play.codec().encode_response(self.text)
        return [Completion(np.array(ids, np.int32), np.zeros(len(ids), np.float32), "stop") for _ in requests]


def self_teacher(engine: Engine, **changes: object) -> LlmTeacher:
    config = RunConfig.model_validate({"seed": 3, "teacher": {"kind": "self", **changes}})
    made = make_teacher(config, play.environment(), Speaker(engine, play.codec()))
    assert isinstance(made, LlmTeacher)
    return made


def test_the_student_reads_its_own_episodes(idle: Transcript) -> None:
    engine = Engine(told((1, place(idle, 1))))
    one = self_teacher(engine)
    (reading,) = one.read([idle])
    assert (one.name, reading.lesson) == ("self", "Look first.")
    assert [candidate.gold_action for candidate in reading.candidates] == [place(idle, 1)]
    text, _ = play.codec().decode(engine.requests[0].prompt_ids)
    assert "Which turns went wrong" in text
    assert one.spent.teacher_calls == 1


def test_its_draws_depend_on_what_is_asked_and_on_the_run_alone(idle: Transcript) -> None:
    other = episode(["inventory"], "f")
    seeds = []
    for listed in ([idle, other], [other, idle], [other]):
        engine = Engine(told())
        self_teacher(engine).read(listed)
        seeds.append([request.seed for request in engine.requests])
    assert seeds[0] == seeds[1][::-1]
    assert seeds[2] == seeds[0][1:]
    assert seeds[0][0] != seeds[0][1]
    one = ModelChat(Speaker(Engine(""), play.codec()), Sampling(1.0, 8), 9, 4)
    assert one._seed(Ask("x")) != replace(one, run_seed=5)._seed(Ask("x"))


def test_an_equal_request_to_a_model_of_this_process_is_answered_once() -> None:
    engine = Engine("look")
    chat = ModelChat(Speaker(engine, play.codec()), Sampling(1.0, 8), 9, 4)
    asks = [Ask("x"), Ask("y"), Ask("x"), Ask("x", sample=1), Ask("y")]
    answers = chat.ask(asks)
    assert [one.prompt for one in answers] == ["x", "y", "x", "x", "y"]
    assert [one.seed for one in engine.requests] == [chat._seed(asks[index]) for index in (0, 1, 3)]
    assert (chat.spent.teacher_calls, chat.spent.teacher_cached) == (3, 2)
    apart = [chat.ask([one])[0] for one in asks]
    assert apart == answers


def test_an_episode_that_is_too_long_for_it_is_not_read(idle: Transcript) -> None:
    other = episode(["look"] * 9, "f")
    engine = Engine(told())
    self_teacher(engine).read([idle, other])
    short, long = sorted(len(request.prompt_ids) for request in engine.requests)
    assert short < long
    one = self_teacher(Engine(told()), prompt_tokens=short)
    read, unread = one.read([idle, other])
    assert read.unread is None
    assert unread.unread == f"the prompt has {long} tokens, at most {short}"
    assert one.spent.teacher_prompts_too_long == 1


def test_the_teacher_is_the_configured_one(tmp_path: object) -> None:
    teacher = {"kind": "endpoint", "base_url": "http://h/v1", "model": "m", "max_candidates": 2}
    config = RunConfig.model_validate({"root": str(tmp_path), "teacher": teacher})
    assert isinstance(config.teacher, EndpointSection)
    made = make_teacher(config, play.environment())
    assert isinstance(made, LlmTeacher)
    assert isinstance(made.chat, EndpointChat)
    assert (made.name, made.max_candidates) == ("endpoint m", 2)
    assert isinstance(RunConfig.model_validate({"teacher": {"kind": "self"}}).teacher, SelfSection)
    assert isinstance(RunConfig().teacher, OracleSection)
