"""Label and recover with a language model that answers well and badly by turns: the run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Artifact
from pivotopd.config_files import apply_overrides
from pivotopd.errors import TeacherError
from pivotopd.local_teacher import LocalTeacher, load_local_teacher
from pivotopd.records import Chain, Label, Lesson, Signal, Turn
from pivotopd.teacher.base import Query, Reading, told
from pivotopd.teacher.oracle import OracleTeacher, view_of
from pivotopd.teacher_section import EndpointSection, LocalSection
from stages.runner import perform
from stages.runs import find_run, rerun
from stages.teaching import teacher_of
from stages.transcripts import transcripts_of
from tests.chat_server import ChatServer, Response, closed_port, serving
from tests.stages.conftest import StoredRun

KEY = "sk-not-to-be-found-anywhere"
MODEL = "big-model"


def override(url: str, **changes: Any) -> str:
    section = {
        "kind": "endpoint", "base_url": url, "model": MODEL, "api_key_variable": "TEACHER_KEY",
        "concurrency": 1, "retries": 1, "price_input": 1, "price_output": 2, **changes,
    }  # fmt: skip
    return f"teacher={json.dumps(section)}"


@dataclass
class Taught:
    """A server that knows the oracle's answer to each of a rollout's prompts, and gives it when it pleases.

    Attributes:
        answers: Prompt to the good answer.
        fates: Prompt to how it is answered: well, unreadable, refused, or well at the second try.
    """

    answers: dict[str, str]
    fates: dict[str, str] = field(default_factory=dict)
    tries: int = 0

    def __call__(self, number: int, body: dict[str, Any]) -> Response | str:
        message = body["messages"][0]["content"]
        prompt = message.partition("\n\nAn earlier answer")[0]
        known = self.answers.get(prompt)
        assert known is not None, f"the oracle was not asked this: {prompt[-300:]}"
        label = "Which turns went wrong" in prompt
        same = [one for one in self.fates if ("Which turns went wrong" in one) == label]
        order = (
            ("well", "unreadable", "late", "refused") if not self.tries else ("well", "unreadable", "refused")
        )
        fate = self.fates.setdefault(prompt, order[len(same) % len(order)])
        if fate == "late" and not self.tries:
            self.tries = 1
            return Response("busy", 503)
        if fate == "refused":
            return Response({"error": {"message": "context length"}}, 400)
        return "No idea,\nsorry." if fate == "unreadable" else known


def label_answer(reading: Reading) -> str:
    steps = {str(one.turn): "Do better." for one in reading.candidates}
    value = {"episode_summary": "s", "episode_lesson": "Look before you go.", "step_lessons": steps}
    blocks = [
        f'<correct_action step="{one.turn}">The {one.gold_action}!</correct_action>'
        for one in reading.candidates
    ]
    return "\n".join(["Let me see.", "```json", json.dumps(value), "```", *blocks])


def answers_of(run: StoredRun) -> dict[str, str]:
    """Return the oracle's answers to all that can be asked of iteration 0 with recoveries of depth 1."""
    work, plan = rerun(run.uri, "label", 0, [])
    environment = work.environment
    oracle = OracleTeacher(environment, True, 5)
    transcripts = list(
        transcripts_of(work.input(plan.job("label", 0), "rollout"), environment, "train").values()
    )
    wording, found = environment.teacher_wording, dict[str, str]()
    for one, reading in zip(transcripts, oracle.read(transcripts), strict=True):
        found[wording.label_prompt(told(one), 5, "blocks")] = label_answer(reading)
        for turn in one.turns:
            view = view_of(one.turns, turn.turn)
            (best,) = oracle.next_actions([Query(one.task, view, turn.snapshot)])
            found[wording.query_prompt(view)] = f"<correct_action>{best}</correct_action>"
    return found


@pytest.fixture
def taught(
    copy: Callable[[], StoredRun], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[StoredRun, Taught]]:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    run = copy()
    return lambda: (run, Taught(answers_of(run)))


def teach(run: StoredRun, server: ChatServer, *more: str) -> list[str]:
    return run.run("label", 0, override(server.url), *more, follow=True)


def made(run: StoredRun, stage: str, args: str) -> Artifact:
    """Return an artifact of iteration 0 that follows from labelling with another teacher."""
    work, plan = rerun(run.uri, "label", 0, [args])
    found = work.find(plan.job(stage, 0))
    assert found is not None
    return found


def test_a_run_goes_on_with_a_teacher_that_answers_badly_by_turns(
    taught: Callable[[], tuple[StoredRun, Taught]],
) -> None:
    run, answers = taught()
    with serving(answers) as server:
        teach(run, server)
        args = override(server.url)
        label, recover = made(run, "label", args), made(run, "recover", args)
        update = made(run, "update", args)
        asked = len(server.bodies)
        assert set(server.keys) == {f"Bearer {KEY}"}

        lessons, labels = label.rows(Lesson), label.rows(Label)
        counts = label.manifest.counts
        unread = [one for one in lessons if one.unread]
        assert len(lessons) == counts["episodes"] == 6
        assert len({one.episode for one in lessons}) == 6
        assert 0 < len(unread) < 6
        assert {one.unread.partition(":")[0] for one in unread if one.unread} >= {
            "the reply holds neither the JSON object nor an action block", "status 400"
        }  # fmt: skip
        assert counts["unread"] == counts["teacher_episodes_unread"] == len(unread)
        assert counts["lessons"] == 6 - len(unread)
        assert all(one.lesson == "Look before you go." for one in lessons if not one.unread)
        assert counts["teacher_retries"] == 1
        assert counts["teacher_cost_millionths"] == counts["teacher_calls"] * (10 + 2 * 5)
        assert counts["teacher_actions_unresolved"] == 0, "the marks around the action do no harm"
        oracle = {(one.episode, one.turn): one for one in run.artifact("label", 0).rows(Label)}
        silent = {one.episode for one in unread}
        assert {(one.episode, one.turn) for one in labels} == {key for key in oracle if key[0] not in silent}
        for one in labels:
            assert one.gold_action == oracle[one.episode, one.turn].gold_action
            assert one.teacher == f"endpoint {MODEL}"

        chains = recover.rows(Chain)
        assert {(one.episode, one.pivot_turn) for one in chains} == {
            (one.episode, one.turn) for one in labels if one.pivotal
        }
        assert recover.manifest.counts["teacher_calls"] > 0
        scored = {one.episode for one in update.rows(Signal) if one.lesson_nats is not None}
        assert scored == {one.episode for one in lessons if one.lesson}

        for artifact in (label, recover):
            shutil.rmtree(artifact.uri)
        teach(run, server)
        again = made(run, "label", args)
        assert (
            len([one for one in server.bodies[asked:] if refused(answers, one)]) == len(server.bodies) - asked
        )
        assert (again.rows(Lesson), again.rows(Label)) == (lessons, labels)
        assert made(run, "recover", args).rows(Chain) == chains
        assert again.manifest.counts["teacher_calls"] == 0
        assert again.manifest.counts["teacher_prompt_tokens"] == 0
        assert again.manifest.counts["teacher_cached"] == counts["teacher_calls"]
        assert again.manifest.content_digest == label.manifest.content_digest, "found or asked, the same rows"

    elsewhere = override(f"http://127.0.0.1:{closed_port()}/v1", concurrency=9, timeout_s=1, price_input=None)
    assert made(run, "label", elsewhere).digest == label.digest, "where it is reached names no work"
    hidden = repr([lessons, labels, chains, recover.rows(Turn) if Path(recover.uri).exists() else None])
    assert KEY not in hidden
    assert all(KEY.encode() not in data for data in run.files().values())


def refused(answers: Taught, body: dict[str, Any]) -> bool:
    """A failure is not kept: what was refused is asked again."""
    return answers.fates[body["messages"][0]["content"].partition("\n\nAn earlier answer")[0]] == "refused"


def test_a_teacher_that_cannot_be_reached_ends_the_stage_and_publishes_nothing(
    taught: Callable[[], tuple[StoredRun, Taught]],
) -> None:
    run, _ = taught()
    before = run.files()
    url = f"http://127.0.0.1:{closed_port()}/v1"
    with pytest.raises(TeacherError, match="nothing answers there") as caught:
        run.run("label", 0, override(url))
    assert caught.value.where == url
    assert run.files() == before


def test_where_every_request_fails_the_stage_ends(taught: Callable[[], tuple[StoredRun, Taught]]) -> None:
    run, _ = taught()
    before = run.files()
    with serving(lambda number, body: Response("too long", 400)) as server:
        with pytest.raises(TeacherError, match="none of 6 requests to the teacher was answered") as caught:
            run.run("label", 0, override(server.url))
        assert caught.value.exit_code == 5
    assert run.files() == before


def test_the_student_teaches_itself(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    section = 'teacher={"kind": "self", "reply_tokens": 24, "prompt_tokens": 12000}'
    run.run("label", 0, section)
    artifact = run.artifact("label", 0, section)
    lessons, counts = artifact.rows(Lesson), artifact.manifest.counts
    assert artifact.manifest.inputs["policy"] == run.artifact("rollout", 0).manifest.inputs["policy"]
    assert artifact.manifest.config["seed"] == 0
    assert len(lessons) == 6
    assert all(one.raw_reply is not None and one.teacher == "self" for one in lessons)
    assert counts["teacher_calls"] == counts["prompts"] >= 6
    assert counts["generated_tokens"] > 0


def test_a_model_folder_teaches(copy: Callable[[], StoredRun], student: Path, tmp_path: Path) -> None:
    """The student's own folder, wherever it lies, says at first what the student says."""
    run, moved = copy(), tmp_path / "moved"
    shutil.copytree(student, moved)
    shared = '"reply_tokens": 24, "prompt_tokens": 4072'
    itself = f'teacher={{"kind": "self", {shared}}}'
    local = f'teacher={{"kind": "local", "path": "{moved}", "dtype": "float32", {shared}}}'
    run.run("label", 0, itself)
    run.run("label", 0, local, "update.idle_limit=9", follow=True)
    own, others = run.artifact("label", 0, itself), run.artifact("label", 0, local)
    replies = {one.episode: one.raw_reply for one in own.rows(Lesson)}
    assert {one.episode: one.raw_reply for one in others.rows(Lesson)} == replies
    assert len(set(replies.values())) > 1
    digest = others.manifest.inputs["teacher"]
    assert {one.teacher for one in others.rows(Lesson)} == {f"local {digest[:12]}"}
    assert "policy" not in others.manifest.inputs
    counts = others.manifest.counts
    assert counts["teacher_calls"] == own.manifest.counts["prompts"]
    assert counts["teacher_prompt_tokens"] == own.manifest.counts["prompt_tokens"]
    assert counts["teacher_reply_tokens"] == own.manifest.counts["generated_tokens"]
    assert others.manifest.config["seed"] == 0
    assert str(moved) not in repr(others.manifest)
    recover = made(run, "recover", local)
    assert recover.manifest.inputs["teacher"] == digest
    assert set(recover.manifest.inputs) == {"policy", "rollout", "label", "teacher"}


def test_a_local_model_is_loaded_once_a_process_and_freed(
    copy: Callable[[], StoredRun], student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    closed: list[str] = []

    def load(section: LocalSection, digest: str, *, token_budget: int) -> LocalTeacher:
        loads.append(digest)
        made = load_local_teacher(section, digest, token_budget=token_budget)
        return LocalTeacher(made.speaker, lambda: closed.append(digest))

    monkeypatch.setattr("stages.teaching.load_local_teacher", load)
    local = (
        f'teacher={{"kind": "local", "path": "{student}", "reply_tokens": 24, "prompt_tokens": 4072, '
        '"dtype": "float32"}'
    )
    work, plan = rerun(copy().uri, "label", 0, [local])
    with closing(work):
        for stage in ("label", "recover"):
            perform(work, plan.job(stage, 0))
        assert teacher_of(work, plan.job("recover", 0)).name == f"local {loads[0][:12]}"
        assert (len(loads), closed) == (1, [])
    assert closed == loads
    assert not work._policies


@pytest.mark.parametrize(
    ("change", "moves"),
    [("model", True), ("temperature", True), ("reply_tokens", True), ("max_candidates", True),
     ("structured", True), *((name, False) for name in sorted(EndpointSection.RUNNING))],
)  # fmt: skip
def test_only_what_decides_an_answer_names_the_work(finished: StoredRun, change: str, moves: bool) -> None:
    values: dict[str, Any] = {
        "model": "other", "temperature": 0.5, "reply_tokens": 7, "max_candidates": 1, "structured": "auto",
        "base_url": "http://elsewhere/v1", "api_key_variable": None, "concurrency": 2, "timeout_s": 9.0,
        "retries": 0, "price_input": 3.0, "price_output": 4.0, "cache": "there",
    }  # fmt: skip
    config, _ = find_run(finished.uri)
    base = apply_overrides(config, [override("http://h/v1")])
    other = apply_overrides(config, [override("http://h/v1", **{change: values[change]})])
    assert base != other
    assert (base.teacher_reads != other.teacher_reads) == moves
