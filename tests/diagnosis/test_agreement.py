"""Agreement within one turn: readings worked out by hand, chance by counting, samples that are draws."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.diagnosis.agreement import Agreement, chance_of, read_samples, samples_of, summarise
from pivotopd.diagnosis.bootstrap import Interval
from pivotopd.diagnosis.interventions import Case
from pivotopd.ledger import Counts
from pivotopd.models.base import Sampling
from pivotopd.records import from_table, to_table
from pivotopd.records_probes import AgreementSample
from pivotopd.rollout import Job
from pivotopd.teacher.base import Candidate, Query, Reading, Teacher, Transcript
from pivotopd.teacher.chat import Ask
from pivotopd.teacher.endpoint import EndpointChat
from pivotopd.teacher.llm import LlmTeacher
from pivotopd.teacher.model_chat import ModelChat, Speaker
from pivotopd.teacher.oracle import OracleTeacher
from pivotopd.teacher.reply_cache import ReplyCache
from pivotopd.teacher_section import EndpointSection, OracleSection, SelfSection, TeacherSection
from tests import play
from tests.chat_server import serving

TASKS = tuple(play.environment().tasks("valid"))
TURNS = 9


def lost(name: str, task_index: int, mistake: int) -> Case:
    task = TASKS[task_index]
    job = Job(name, task, name, 0, task_index)
    (one,) = play.player(play.script({job.seed: play.lose(task, {mistake}, TURNS)}), max_turns=TURNS).play(
        [job]
    )
    return Case(play.transcript(task, one), mistake, frozenset({mistake}))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [lost("a", 0, 3), lost("b", 1, 2), lost("c", 2, 4)]


class Told:
    """A teacher that says what it is told, by sample and episode."""

    name = "told"

    def __init__(self, said: dict[tuple[int, str], Reading]) -> None:
        self.said = said
        self.spent = Counts()
        self.counts: dict[str, int] = {}

    def read(self, transcripts: Sequence[Transcript], sample: int = 0) -> list[Reading]:
        return [self.said[sample, one.episode.episode] for one in transcripts]

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        raise NotImplementedError

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        raise NotImplementedError

    def distil(self, transcripts: Sequence[Transcript]) -> list[str | None]:
        raise NotImplementedError


def read(teacher: Teacher, cases: Sequence[Case], samples: int = 1, m: int = 5) -> list[AgreementSample]:
    wording = play.environment().wording
    return read_samples(teacher, cases, wording, samples=samples, max_candidates=m)


def named(case: Case, *turns: int, agree: Sequence[int] = ()) -> Reading:
    """A reading that names turns: with another action than the student's, or with the same."""
    candidates = []
    for turn in turns:
        done = case.transcript.turns[turn].action
        gold = done if turn in agree else "inventory"
        candidates.append(Candidate(turn, gold, gold))
    return Reading(tuple(candidates))


# ---------------------------------------------------------------------- chance


@given(st.integers(1, 9).flatmap(lambda turns: st.tuples(st.just(turns), st.integers(0, turns - 1),
                                                         st.integers(0, turns))))  # fmt: skip
def test_chance_is_the_share_of_all_choices_that_come_near(case: tuple[int, int, int]) -> None:
    turns, pivot, detected = case
    choices = list(combinations(range(turns), detected))
    near = sum(any(abs(turn - pivot) <= 1 for turn in choice) for choice in choices)
    assert chance_of(turns, pivot, detected) == pytest.approx(near / len(choices))


def test_chance_by_hand() -> None:
    assert chance_of(10, 4, 1) == pytest.approx(3 / 10)
    assert chance_of(10, 0, 1) == pytest.approx(2 / 10)
    assert chance_of(10, 9, 2) == pytest.approx(1 - (8 * 7) / (10 * 9))
    assert chance_of(30, 8, 5) == pytest.approx(1 - 27 * 26 * 25 * 24 * 23 / (30 * 29 * 28 * 27 * 26))
    assert chance_of(10, 4, 0) == 0.0
    assert chance_of(1, 0, 1) == chance_of(10, 4, 8) == 1.0


# ---------------------------------------------------------------------- correct readings


def test_a_reading_is_correct_within_one_turn_of_the_first_pivot(cases: list[Case]) -> None:
    case = cases[0]
    for turn, correct in ((1, False), (2, True), (3, True), (4, True), (5, False)):
        (row,) = read(Told({(0, "a"): named(case, turn)}), [case])
        assert (row.correct, row.detected) == (correct, [turn])
        assert row.chance == pytest.approx(3 / TURNS)
    # A candidate whose action the student took is not detected, however near it lies.
    (row,) = read(Told({(0, "a"): named(case, 3, 8, agree=[3])}), [case])
    assert (row.correct, row.detected) == (False, [8])
    (row,) = read(Told({(0, "a"): named(case, 8, 3, 7)}), [case], m=2)
    assert row.detected == [3, 8]
    (row,) = read(Told({(0, "a"): Reading((), unread="no JSON")}), [case])
    assert (row.correct, row.detected, row.chance, row.unread) == (False, [], 0.0, "no JSON")


def test_samples_are_averaged_before_episodes(cases: list[Case]) -> None:
    a, b, c = cases
    right, wrong, unread = named(a, 3), named(a, 8), Reading((), unread="no JSON")
    said = {
        (0, "a"): right, (1, "a"): wrong, (2, "a"): unread, (3, "a"): wrong,
        **{(sample, "b"): named(b, 2, 6) for sample in range(4)},
        **{(sample, "c"): named(c, 8) for sample in range(4)},
    }  # fmt: skip
    rows = read(Told(said), cases, samples=4)
    assert [(row.episode, row.sample) for row in rows] == [(name, n) for name in "abc" for n in range(4)]
    found = summarise(rows, draws=500, seed=0)
    assert (found.samples, found.unread) == (12, 1)
    assert found.correct is not None
    assert found.chance is not None
    assert found.correct.mean == pytest.approx((1 / 4 + 1 + 0) / 3)
    two = 1 - (6 * 5) / (9 * 8)
    assert found.chance.mean == pytest.approx((3 / 4 * 3 / 9 + two + 3 / 9) / 3)
    assert found.correct.episodes == 3
    assert 0 <= found.correct.low < found.correct.mean < found.correct.high <= 1
    assert summarise(random.Random(2).sample(rows, 12), draws=500, seed=0) == found
    assert from_table(AgreementSample, to_table(AgreementSample, rows), "here") == rows


def test_no_failure_is_no_agreement_and_no_error(cases: list[Case]) -> None:
    rows = read(Told({}), [], samples=5)
    assert summarise(rows, draws=9, seed=0) == Agreement(0, 0, None, None)
    unread = {(0, case.transcript.episode.episode): Reading((), unread="?") for case in cases}
    never = summarise(read(Told(unread), cases), draws=9, seed=0)
    assert never == Agreement(3, 3, Interval(0.0, 0.0, 0.0, 3), Interval(0.0, 0.0, 0.0, 3))


def test_the_exact_oracle_agrees_with_itself(cases: list[Case]) -> None:
    rows = read(OracleTeacher(play.environment(), False, 5, 5), cases)
    assert all(row.correct for row in rows)
    assert [row.detected for row in rows] == [[3], [2], [4]]


# ---------------------------------------------------------------------- draws of a teacher


@pytest.mark.parametrize(
    ("section", "samples"),
    [
        (OracleSection(), 1),
        (EndpointSection(base_url="http://h/v1", model="m"), 5),
        (EndpointSection(base_url="http://h/v1", model="m", temperature=0.7), 5),
        (EndpointSection(base_url="http://h/v1", model="m", temperature=0), 1),
        (SelfSection(), 5),
        (SelfSection(temperature=0), 1),
    ],
)
def test_a_teacher_that_always_says_the_same_is_asked_once(section: TeacherSection, samples: int) -> None:
    assert samples_of(section, 5) == samples


def reply(turn: int) -> str:
    value = {"episode_summary": "s", "episode_lesson": "l", "step_lessons": {str(turn): "Do."}}
    block = f'<correct_action step="{turn}">inventory</correct_action>'
    return f"```json\n{json.dumps(value)}\n```\n{block}"


def test_the_reply_cache_keeps_one_answer_a_sample(cases: list[Case], tmp_path: Path) -> None:
    numbers = iter(range(100))

    def behave(number: int, body: dict[str, Any]) -> str:
        return reply(next(numbers) % TURNS)

    def teacher() -> LlmTeacher:
        section = EndpointSection(base_url=server.url, model="m", concurrency=1)
        return LlmTeacher(play.environment(), EndpointChat(section, ReplyCache.at(str(tmp_path), None)), 5)

    with serving(behave) as server:
        training = teacher().read([cases[0].transcript])
        rows = read(teacher(), cases[:1], samples=5)
        assert [row.detected for row in rows] == [[0], [1], [2], [3], [4]]
        assert [row.correct for row in rows] == [False, False, True, True, True]
        assert [one.turn for one in training[0].candidates] == rows[0].detected
        assert len(server.bodies) == 5
        assert len(set(server.prompts())) == 1
        assert all("sample" not in body for body in server.bodies)
        assert read(teacher(), cases[:1], samples=5) == rows
        assert len(server.bodies) == 5


def test_a_second_try_belongs_to_its_sample(cases: list[Case], tmp_path: Path) -> None:
    with serving(lambda number, body: reply(3) if "An earlier answer" in str(body) else "?") as server:
        section = EndpointSection(base_url=server.url, model="m", concurrency=1)
        chat = EndpointChat(section, ReplyCache.at(str(tmp_path), None))
        rows = read(LlmTeacher(play.environment(), chat, 5), cases[:1], samples=2)
        assert [row.correct for row in rows] == [True, True]
        assert len(server.bodies) == 4


def test_the_student_as_teacher_draws_anew_for_each_sample() -> None:
    chat = ModelChat(Speaker(play.Scripted(play.refuse), play.codec()), Sampling(1.0, 8), 9, 4)
    seeds = [chat._seed(replace(Ask("x"), sample=sample)) for sample in range(5)]
    assert len(set(seeds)) == 5
    assert seeds[0] == chat._seed(Ask("x"))
