"""The endpoint against a real local server that behaves well and badly."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from pivotopd.errors import ConfigError, TeacherError
from pivotopd.ledger import Counts
from pivotopd.stops import StopSignal, stop_signals
from pivotopd.teacher.chat import Answer, Ask
from pivotopd.teacher.endpoint import EndpointChat
from pivotopd.teacher.reply_cache import ReplyCache
from pivotopd.teacher_section import EndpointSection
from tests.chat_server import ChatServer, Response, closed_port, said, serving

KEY = "sk-Secret.0123456789"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def chat(url: str, folder: Path, **changes: Any) -> EndpointChat:
    data: dict[str, Any] = {"base_url": url, "model": "big", "retries": 2, "timeout_s": 5, "concurrency": 4}
    section = EndpointSection.model_validate(data | changes)
    return EndpointChat(section, ReplyCache.at(str(folder), None), first_wait_s=0.01)


def texts(answers: list[Answer]) -> list[str | None]:
    return [answer.text for answer in answers]


def asks(*prompts: str) -> list[Ask]:
    return [Ask(prompt) for prompt in prompts]


def echo(number: int, body: dict[str, Any]) -> str:
    return f"re: {body['messages'][0]['content']}"


def test_answers_come_in_order_and_the_ledger_is_exact(tmp_path: Path) -> None:
    with serving(echo) as server:
        one = chat(server.url, tmp_path, price_input=2.0, price_output=10.0)
        assert texts(one.ask(asks("a", "b", "c"))) == ["re: a", "re: b", "re: c"]
        assert one.spent == Counts(
            teacher_calls=3, teacher_prompt_tokens=30, teacher_reply_tokens=15,
            teacher_cost_millionths=30 * 2 + 15 * 10,
        )  # fmt: skip
        assert server.keys == [None] * 3
        assert set(server.paths) == {"/v1/models", "/v1/chat/completions"}
        body = next(body for body in server.bodies if body["messages"][0]["content"] == "a")
    assert body == {"model": "big", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4096}
    assert "teacher_cost_millionths" not in chat(server.url, tmp_path).spent.listed()


def test_what_was_answered_is_not_asked_again_not_even_with_the_server_gone(tmp_path: Path) -> None:
    with serving(echo) as server:
        one = chat(server.url, tmp_path)
        assert texts(one.ask(asks("a", "a", "b"))) == ["re: a", "re: a", "re: b"]
        assert len(server.bodies) == 2
        assert (one.calls, one.cached) == (2, 1)
    other = chat(f"http://127.0.0.1:{closed_port()}", tmp_path, api_key_variable="NOT_SET_ANYWHERE")
    assert texts(other.ask(asks("b", "a"))) == ["re: b", "re: a"]
    assert (other.calls, other.cached, other.spent.teacher_prompt_tokens) == (0, 2, 0)


@pytest.mark.parametrize(
    "changes", [{"model": "other"}, {"temperature": 0.0}, {"temperature": 0.5}, {"reply_tokens": 9}]
)
def test_what_decides_an_answer_asks_anew(tmp_path: Path, changes: dict[str, Any]) -> None:
    with serving(echo) as server:
        chat(server.url, tmp_path).ask(asks("a"))
        chat(server.url, tmp_path, **changes).ask(asks("a"))
        chat(server.url, tmp_path, timeout_s=3, retries=0, concurrency=1).ask(asks("a"))
        assert len(server.bodies) == 2
        sent = {"max_tokens" if key == "reply_tokens" else key: value for key, value in changes.items()}
        assert sent.items() <= server.bodies[1].items()


@pytest.mark.parametrize("damage", ["", "{", '{"text": "x"}'])
def test_a_damaged_cache_file_is_asked_again_and_replaced(tmp_path: Path, damage: str) -> None:
    with serving(echo) as server:
        chat(server.url, tmp_path).ask(asks("a"))
        (file,) = (tmp_path / "shared" / "teacher_cache").rglob("*.json")
        stored = json.loads(file.read_text())
        assert stored["request"]["messages"][0]["content"] == "a"
        file.write_text(damage)
        assert texts(chat(server.url, tmp_path).ask(asks("a"))) == ["re: a"]
        assert len(server.bodies) == 2
        assert json.loads(file.read_text()) == stored


def first(bad: Response) -> Callable[[int, dict[str, Any]], Response | str]:
    return lambda number, body: bad if number == 0 else "good"


@pytest.mark.parametrize(
    "bad",
    [
        Response("busy", 429),
        Response({"error": "boom"}, 500),
        Response("<html><h1>502 Bad Gateway</h1></html>", 502),
        Response("<html>welcome</html>"),
        Response(""),
        Response("x" * 1_000_000),
        Response({"choices": []}),
        Response({"choices": [{"message": {"content": 7}}]}),
        Response([1, 2]),
        Response({"choices": [{"message": {"content": "cut"}}]}, cut=20),
        Response("", cut=0, headers={"content-length": "50"}),
        Response({"choices": [{"message": {"content": "late"}}]}, wait_s=1.0),
        Response("not gzip", headers={"content-encoding": "gzip"}),
    ],
)
def test_what_may_pass_is_tried_again(tmp_path: Path, bad: Response) -> None:
    with serving(first(bad)) as server:
        one = chat(server.url, tmp_path, timeout_s=0.5)
        assert texts(one.ask(asks("a"))) == ["good"]
        assert (one.calls, one.retries, one.failed) == (1, 1, 0)


def test_a_long_or_empty_reply_is_a_reply_and_an_empty_one_is_not_kept(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Response:
        return said("y" * 1_000_000 if body["messages"][0]["content"] == "long" else None)

    with serving(behave) as server:
        answers = chat(server.url, tmp_path).ask(asks("long", "empty"))
        assert [len(text or "") for text in texts(answers)] == [1_000_000, 0]
        assert answers[1].text == ""
        chat(server.url, tmp_path).ask(asks("long", "empty"))
        assert server.prompts()[2:] == ["empty"]


@pytest.mark.parametrize(
    ("usage", "told"), [(None, 0), ({}, 0), ({"prompt_tokens": None, "completion_tokens": 4}, 4)]
)
def test_a_reply_whose_tokens_are_not_told_is_a_reply(tmp_path: Path, usage: object, told: int) -> None:
    body = {"choices": [{"message": {"content": "good"}}], "usage": usage}
    with serving(lambda number, sent: Response(body)) as server:
        one = chat(server.url, tmp_path)
        assert texts(one.ask(asks("a"))) == ["good"]
        assert (one.retries, one.prompt_tokens, one.reply_tokens) == (0, 0, told)


@pytest.mark.parametrize(
    ("details", "cached"), [({"cached_tokens": 7}, 7), ({"cached_tokens": None}, 0), (None, 0)]
)
def test_tokens_in_the_server_s_prefix_cache_are_counted_where_it_tells(
    tmp_path: Path, details: object, cached: int
) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": details}
    body = {"choices": [{"message": {"content": "good"}}], "usage": usage}
    with serving(lambda number, sent: Response(body)) as server:
        one = chat(server.url, tmp_path)
        one.ask(asks("a"))
        assert one.spent == Counts(
            teacher_calls=1,
            teacher_prompt_tokens=9,
            teacher_cached_prompt_tokens=cached,
            teacher_reply_tokens=2,
        )


def test_a_request_that_fails_for_good_is_an_answer_without_text(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Response | str:
        return Response("boom", 503) if body["messages"][0]["content"] == "b" else "good"

    with serving(behave) as server:
        one = chat(server.url, tmp_path)
        found = one.ask(asks("a", "b", "c"))
        assert texts(found) == ["good", None, "good"]
        assert found[1].failure == "status 503: 'boom'"
        assert (one.calls, one.retries, one.failed) == (2, 2, 1)
        assert server.prompts().count("b") == 3
        assert texts(chat(server.url, tmp_path).ask(asks("a"))) == ["good"]
        before = len(server.bodies)
        chat(server.url, tmp_path).ask(asks("a", "b"))
        assert len(server.bodies) == before + 3, "a failure is not kept"


def test_a_prompt_that_is_too_long_fails_alone_and_at_once(tmp_path: Path) -> None:
    refusal = Response({"error": {"message": "maximum context length is 8 tokens"}}, 400)
    with serving(lambda number, body: refusal) as server:
        one = chat(server.url, tmp_path)
        (answer,) = one.ask(asks("a"))
        assert answer.text is None
        assert "maximum context length" in (answer.failure or "")
        assert len(server.bodies) == 1


def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    for value, least in (("0.4", 0.4), (date, 0.0), ("soon", 0.0), ("nan", 0.0)):
        with serving(first(Response("slow down", 429, {"retry-after": value}))) as server:
            start = time.monotonic()
            assert texts(chat(server.url, tmp_path / value[:3]).ask(asks("a"))) == ["good"]
            assert time.monotonic() - start >= least


@pytest.mark.parametrize("value", ["3600", "99999999"])
def test_a_pause_beyond_the_time_limit_is_not_waited_for(tmp_path: Path, value: str) -> None:
    with serving(lambda number, body: Response("quota", 429, {"retry-after": value})) as server:
        (answer,) = chat(server.url, tmp_path).ask(asks("a"))
        assert answer.failure == "status 429: 'quota'"
        assert len(server.bodies) == 1


def test_no_more_requests_than_allowed_are_in_flight(tmp_path: Path) -> None:
    with serving(lambda number, body: Response(said("x").body, wait_s=0.03)) as server:
        chat(server.url, tmp_path, concurrency=3).ask(asks(*map(str, range(9))))
        assert 1 < server.most_at_once <= 3


# ------------------------------------------------------------------ what ends the stage


def test_a_server_that_goes_away_in_the_middle_ends_the_stage_and_keeps_what_it_said(tmp_path: Path) -> None:
    with serving(echo) as server:
        one = chat(server.url, tmp_path)
        assert texts(one.ask(asks("a"))) == ["re: a"]
    with pytest.raises(TeacherError, match="nothing answers there") as caught:
        one.ask(asks("a", "b", "c"))
    assert (caught.value.exit_code, caught.value.where) == (5, server.url)
    assert one.retries >= 2, "it may come back"
    assert texts(one.ask(asks("a"))) == ["re: a"]


def test_an_endpoint_that_is_down_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}/v1"
    with pytest.raises(TeacherError, match="nothing answers there") as caught:
        chat(url, tmp_path, retries=50).ask(asks("a"))
    assert caught.value.exit_code == 5
    assert caught.value.where == url
    assert "teacher.base_url" in (caught.value.mend or "")


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_wrong_key_model_or_address_ends_at_once_and_repeats_no_key(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    refusal = Response({"error": {"message": f"Incorrect API key provided: {KEY}"}}, status)
    with serving(lambda number, body: refusal) as server:
        one = chat(server.url, tmp_path, api_key_variable="TEACHER_KEY", concurrency=1)
        with pytest.raises(TeacherError, match=f"refuses: status {status}") as caught:
            one.ask(asks("a", "b", "c"))
        assert server.keys == [f"Bearer {KEY}"], "the first refusal ends it"
    assert KEY not in f"{caught.value} {caught.value!r} {one!r}"
    assert "***" in str(caught.value)
    assert "big" in str(caught.value)


@pytest.mark.parametrize("padding", [0, 280, 290])
@pytest.mark.parametrize("status", [200, 400, 401, 503])
def test_a_server_that_repeats_the_key_gives_no_part_of_it_away(
    tmp_path: Path, status: int, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the key stands across the place at which a long text is cut, and in a reply."""
    monkeypatch.setenv("TEACHER_KEY", KEY)
    body = "x" * padding + KEY
    behave: list[Response] = [Response(body, status), said(body)]
    for response in behave if status == 200 else behave[:1]:
        with serving(lambda number, sent, response=response: response) as server:  # type: ignore[misc]  # bound
            one = chat(server.url, tmp_path, api_key_variable="TEACHER_KEY", retries=0)
            try:
                found = repr(one.ask(asks("a")))
            except TeacherError as error:
                found = str(error)
        assert KEY[:6] not in found
        assert "x" * padding in found
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))
    assert KEY.encode() not in kept
    assert bool(kept) == (status == 200)


@pytest.mark.parametrize("value", [None, "", " ", "two words", "ключ", "a\nb"])
def test_a_key_that_is_not_there_or_cannot_be_sent(
    tmp_path: Path, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("TEACHER_KEY", value)
    with serving(echo) as server:
        with pytest.raises(ConfigError, match="TEACHER_KEY") as caught:
            chat(server.url, tmp_path, api_key_variable="TEACHER_KEY").ask(asks("a"))
        assert server.paths == []
    assert not (value or "").strip() or value not in str(caught.value)


def test_a_stop_signal_does_not_wait_for_replies(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Response:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return Response(said("late").body, wait_s=1.5)

    with serving(behave) as server, stop_signals():
        start = time.monotonic()
        with pytest.raises(StopSignal):
            chat(server.url, tmp_path).ask(asks("a"))
        assert time.monotonic() - start < 1.5


# ------------------------------------------------------------------ how servers differ


def structured(server: ChatServer, folder: Path) -> tuple[EndpointChat, list[Answer]]:
    one = chat(server.url, folder, structured="auto", concurrency=1)
    return one, one.ask([Ask(f"plain {n}", f"json {n}", SCHEMA) for n in range(2)] + [Ask("query")])


def test_a_schema_is_asked_for_where_the_server_takes_it(tmp_path: Path) -> None:
    with serving(echo) as server:
        _, found = structured(server, tmp_path)
        assert texts(found) == ["re: json 0", "re: json 1", "re: query"]
        assert [answer.prompt for answer in found] == ["json 0", "json 1", "query"]
        formats = [body.get("response_format") for body in server.bodies]
        wanted = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}
        assert formats == [wanted, wanted, None]
        assert len(structured(server, tmp_path)[1]) == 3
        assert len(server.bodies) == 3


def test_a_server_without_schemas_is_asked_in_words_from_then_on(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Response | str:
        if "response_format" in body:
            return Response({"error": {"message": "response_format is not supported"}}, 400)
        return echo(number, body)

    with serving(behave) as server:
        one, found = structured(server, tmp_path)
        assert texts(found) == ["re: plain 0", "re: plain 1", "re: query"]
        assert [answer.prompt for answer in found] == ["plain 0", "plain 1", "query"]
        assert server.prompts() == ["json 0", "plain 0", "plain 1", "query"]
        assert one.failed == 0
        structured(server, tmp_path)
        assert len(server.bodies) == 4, "a second run asks nothing"


def test_a_server_that_takes_no_bounds_in_a_schema_gets_it_without_them(tmp_path: Path) -> None:
    words = {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 9}}
    bounded = {"type": "object", "properties": {"a": words}}

    def behave(number: int, body: dict[str, Any]) -> Response | str:
        if "maxLength" in json.dumps(body["response_format"]):
            message = "Invalid schema for response_format 'reply': 'maxLength' is not permitted."
            return Response({"error": {"message": message}}, 400)
        return echo(number, body)

    with serving(behave) as server:
        one = chat(server.url, tmp_path, structured="auto", concurrency=1)
        found = one.ask([Ask(f"plain {n}", f"json {n}", bounded) for n in range(2)])
        assert texts(found) == ["re: json 0", "re: json 1"]
        assert server.prompts() == ["json 0", "json 0", "json 1"]
        sent = server.bodies[-1]["response_format"]["json_schema"]["schema"]
        assert sent == {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
        assert one.failed == 0


@pytest.mark.parametrize(("finish", "cut"), [("stop", False), ("length", True), (None, False)])
def test_a_reply_that_ended_at_the_limit_is_known_as_such_also_later(
    tmp_path: Path, finish: str | None, cut: bool
) -> None:
    completion = said("half a").body
    completion["choices"][0]["finish_reason"] = finish
    with serving(lambda number, body: Response(completion)) as server:
        for _ in range(2):
            (answer,) = chat(server.url, tmp_path).ask(asks("a"))
            assert (answer.text, answer.cut) == ("half a", cut)
        assert len(server.bodies) == 1


def test_a_server_with_another_name_for_the_limit(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Response | str:
        if "max_tokens" in body:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return Response({"error": {"message": message}}, 400)
        return echo(number, body)

    with serving(behave) as server:
        one = chat(server.url, tmp_path)
        assert texts(one.ask(asks("a", "b", "c"))) == ["re: a", "re: b", "re: c"]
        assert all(
            body["max_completion_tokens"] == 4096 for body in server.bodies if "max_tokens" not in body
        )
        assert one.failed == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": "localhost:8000"}, "write an address"),
        ({"base_url": "http://user:pw@host/v1"}, "api_key_variable"),
        ({"base_url": "https://host/v1?key=1"}, "api_key_variable"),
        ({"api_key_variable": KEY}, "never the key"),
        ({"api_key_variable": "sk_0123"}, "never the key"),
    ],
)
def test_a_key_has_no_place_in_a_configuration(changes: dict[str, Any], message: str) -> None:
    from pivotopd.config_files import parse_config

    teacher = {"kind": "endpoint", "base_url": "http://h/v1/", "model": "m"}
    assert parse_config({"teacher": teacher}, where="here").teacher.base_url == "http://h/v1"  # type: ignore[union-attr]  # of this kind
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config({"teacher": teacher | changes}, where="here")
    assert not any(secret in str(caught.value) for secret in (KEY, "pw@", "sk_0123", "key=1"))
