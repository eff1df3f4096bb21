"""A teacher's server that misbehaves, in every way it can, under the real stages and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from flows.cli import app
from pivotopd.exits import run_command
from pivotopd.records import Chain, Label, Lesson, Signal, Turn
from stages.runs import rerun
from tests.chat_server import Response, closed_port, said, serving
from tests.stages.conftest import StoredRun

NAMED = '<correct_action step="0">look</correct_action>'
LESSON = "Look before you go."
LABEL = json.dumps({"episode_summary": "s", "episode_lesson": LESSON, "step_lessons": {"0": "Look."}})
GOOD = {"label": f"{LABEL}\n{NAMED}", "query": "<correct_action>look</correct_action>"}

BROKEN = {
    "429": (Response("slow down", 429), "status 429: 'slow down'"),
    "500": (Response({"error": "boom"}, 500), "status 500"),
    "slow": (Response(said(GOOD["label"]).body, wait_s=1.0), "no reply within 0.4 s"),
    "closed mid-reply": (Response(said(GOOD["label"]).body, cut=40), "RemoteProtocolError"),
    "html": (Response("<html><h1>Welcome</h1></html>"), "no chat completion: '<html>"),
    "no body": (Response(""), "no chat completion: ''"),
    "1 MB of no JSON": (Response("x" * 1_000_000), "no chat completion"),
}
"""No reply at all: what the server does, and the reason that is kept."""
USELESS = {
    "empty": ("", "the reply is empty"),
    "1 MB of text": ("go on " * 170_000, "the reply has 1020000 characters"),
    "another language": ("对不起，\n我不知道。\n" * 3, "the reply holds neither"),
    "code": ("__import__('os').system('touch here')\n{'a': 1}", "the reply holds neither"),
}
"""A reply that says nothing."""


def stored(run: StoredRun) -> dict[str, bytes]:
    """Return the run's own files; that the command was tried stands in MLflow beside them."""
    return {name: data for name, data in run.files().items() if name.startswith(f"{run.uri}/")}


@dataclass
class Server:
    """Answers well but for the first prompt of each kind, which it always treats badly.

    Attributes:
        bad: What it does with that one.
        everyone: It treats all so.
    """

    bad: Response | str
    everyone: bool = False
    first: dict[str, str] = field(default_factory=dict)

    def __call__(self, number: int, body: dict[str, Any]) -> Response | str:
        prompt = body["messages"][0]["content"].partition("\n\nAn earlier answer")[0]
        kind = "label" if "Which turns went wrong" in prompt else "query"
        hit = self.everyone or self.first.setdefault(kind, prompt) == prompt
        return self.bad if hit else GOOD[kind]


def teacher(url: str, **changes: Any) -> str:
    section = {
        "kind": "endpoint", "base_url": url, "model": "m", "concurrency": 2, "retries": 0, "timeout_s": 0.4,
        **changes,
    }  # fmt: skip
    return f"teacher={json.dumps(section)}"


@pytest.mark.parametrize(("bad", "reason"), [*BROKEN.values(), *USELESS.values()], ids=[*BROKEN, *USELESS])
def test_one_episode_loses_its_signal_and_the_others_keep_theirs(
    copy: Callable[[], StoredRun], bad: Response | str, reason: str
) -> None:
    run = copy()
    with serving(Server(bad)) as server:
        settings = teacher(server.url)
        run.run("label", 0, settings)
        run.run("recover", 0, settings)
    lessons, labels = (run.artifact("label", 0, settings).rows(table) for table in (Lesson, Label))
    lost = [one for one in lessons if one.unread]
    assert len(lessons) == 6
    assert 1 <= len(lost) < 6
    for one in lost:
        assert reason in (one.unread or "")
        assert len(one.unread or "") < 500, "a reason is short, whatever was sent"
        assert one.lesson is None
    assert {one.lesson for one in lessons if not one.unread} == {LESSON}
    assert {one.episode for one in labels} == {one.episode for one in lessons if not one.unread}
    recover = run.artifact("recover", 0, settings)
    ends = [one.stopped for one in recover.rows(Chain)]
    assert "unresolved" in ends
    assert recover.manifest.counts["teacher_queries_unread"] >= 1
    if recover.manifest.counts["teacher_queries"] > ends.count("unresolved"):
        assert {row.gold_action for row in recover.rows(Turn)} == {"look"}


def test_an_action_that_is_not_admissible_is_no_signal(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    fly = '<correct_action step="0">fly to the moon</correct_action>'
    with serving(Server(f"{LABEL}\n{fly}")) as server:
        settings = teacher(server.url)
        run.run("label", 0, settings)
    labels = run.artifact("label", 0, settings).rows(Label)
    strange = [one for one in labels if one.gold_written == "fly to the moon"]
    assert strange
    for one in strange:
        assert (one.gold_action, one.pivotal, one.reason) == (None, False, "unresolved")
    assert {one.gold_action for one in labels} == {None, "look"}
    assert all(one.lesson == LESSON for one in run.artifact("label", 0, settings).rows(Lesson))


@pytest.mark.parametrize("bad", [text for text, _ in USELESS.values()], ids=list(USELESS))
def test_where_no_reply_says_anything_the_iteration_trains_on_its_outcomes(
    copy: Callable[[], StoredRun], bad: str
) -> None:
    run = copy()
    with serving(Server(bad, everyone=True)) as server:
        settings = teacher(server.url)
        run.run("label", 0, settings)
    counts = run.artifact("label", 0, settings).manifest.counts
    assert counts["unread"] == counts["episodes"] == 6
    assert counts["pivotal"] == counts["lessons"] == 0


def test_a_method_of_skills_in_hindsight_trains_on_where_no_analysis_can_be_read(
    copy: Callable[[], StoredRun],
) -> None:
    run = copy()
    with serving(Server("I cannot say.", everyone=True)) as server:
        settings = (teacher(server.url), "method=opid", "update.idle_limit=9")
        run.run("label", 0, *settings, follow=True)
    work, plan = rerun(run.uri, "label", 0, list(settings))
    update = work.find(plan.job("update", 0))
    assert update is not None
    signals = update.rows(Signal)
    assert len(signals) == update.manifest.counts["rows"] > 0
    assert all(one.skill_nats is None for one in signals)


@pytest.mark.parametrize("name", ["down", *BROKEN])
def test_a_server_that_answers_nobody_ends_the_command_with_5_and_leaves_nothing(
    copy: Callable[[], StoredRun], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy()
    before = stored(run)
    with serving(Server(BROKEN[name][0] if name in BROKEN else "", everyone=True)) as server:
        url = f"http://127.0.0.1:{closed_port()}/v1" if name == "down" else server.url
        arguments = ["stage", "label", "--run", run.uri, "--iteration", "0", teacher(url)]
        assert run_command(lambda: app(arguments, standalone_mode=False)) == 5
    shown = capsys.readouterr()
    told = "nothing answers there" if name == "down" else "none of 6 requests to the teacher was answered"
    assert told in shown.err
    assert url in shown.err
    assert "mend:" in shown.err
    assert len(shown.err) < 1000
    assert shown.out == ""
    assert stored(run) == before
