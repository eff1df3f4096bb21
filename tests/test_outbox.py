"""Deliveries arrive in order, all of them once the service is back; nobody waits long for one that is not."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from pivotopd import outbox
from pivotopd.outbox import Outbox


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PAUSES_S", (0.01,))


def never(error: Exception) -> bool:
    return False


def test_deliveries_keep_their_order() -> None:
    got: list[int] = []
    line = Outbox("x", never)
    for number in range(100):
        line.put(lambda number=number: got.append(number))
    assert line.flush(10)
    assert got == list(range(100))


def test_a_service_that_comes_back_gets_everything(no_pauses: None, caplog: pytest.LogCaptureFixture) -> None:
    got: list[int] = []
    down = threading.Event()
    down.set()

    def deliver(number: int) -> None:
        if down.is_set():
            raise OSError("away")
        got.append(number)

    line = Outbox("the service", never)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            line.put(lambda number=number: deliver(number))
        assert not line.flush(10)
        down.clear()
        deadline_s = time.monotonic() + 10
        while not line.flush(1) and time.monotonic() < deadline_s:
            pass
    assert got == list(range(5))
    assert len(caplog.records) == 1
    assert "the service: OSError: away" in caplog.text


def test_a_flush_outlasts_one_failure(no_pauses: None) -> None:
    """The last deliveries of a run are worth a second try."""
    got, failing = [], [OSError("for a moment")]

    def deliver() -> None:
        if failing:
            raise failing.pop()
        got.append(1)

    line = Outbox("x", never)
    line.put(deliver)
    assert line.flush(10)
    assert got == [1]


def test_a_refused_delivery_does_not_hold_up_the_line(caplog: pytest.LogCaptureFixture) -> None:
    got: list[str] = []

    def refuse() -> None:
        raise ValueError("no such thing")

    line = Outbox("x", lambda error: isinstance(error, ValueError))
    for delivery in (refuse, lambda: got.append("second"), refuse, lambda: got.append("fourth")):
        line.put(delivery)
    assert line.flush(10)
    assert got == ["second", "fourth"]
    assert len(caplog.records) == 1


def test_what_stands_apart_holds_up_nothing_and_arrives_later(no_pauses: None) -> None:
    """A file's store is away, the metrics' is not."""
    got: list[str] = []
    back = threading.Event()

    def file() -> None:
        if not back.is_set():
            raise OSError("no bucket")
        got.append("file")

    line = Outbox("x", never)
    line.put(file, apart=True)
    for name in ("one", "two"):
        line.put(lambda name=name: got.append(name))
    assert not line.flush(10)
    assert got == ["one", "two"]
    back.set()
    deadline_s = time.monotonic() + 10
    while not line.flush(1) and time.monotonic() < deadline_s:
        pass
    assert got == ["one", "two", "file"]


def test_a_file_that_never_arrives_holds_up_no_other_file(no_pauses: None) -> None:
    got: list[str] = []

    def never_taken() -> None:
        raise OSError("too large")

    line = Outbox("x", never)
    for delivery in (never_taken, lambda: got.append("one"), never_taken, lambda: got.append("two")):
        line.put(delivery, apart=True)
    assert not line.flush(10)
    assert got == ["one", "two"], "all had their turn before the flush gave up"


def test_a_flush_gives_up_where_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service hangs: the flush's own time would be an hour."""
    monkeypatch.setattr(outbox, "STALL_S", 0.2)
    release, got = threading.Event(), []
    line = Outbox("x", never)

    def slow(number: int) -> None:
        time.sleep(0.1)
        got.append(number)

    for number in range(5):
        line.put(lambda number=number: slow(number))
    line.put(lambda: release.wait(30) and None)
    assert not line.flush(3600)
    assert got == list(range(5)), "what moves is waited for, longer than nothing would be"
    release.set()
    assert line.flush(30)


def test_flush_returns_when_its_time_is_over() -> None:
    release = threading.Event()
    line = Outbox("x", never)
    line.put(lambda: release.wait(30) and None)
    assert not line.flush(0.05)
    release.set()
    assert line.flush(30)


def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    release, got = threading.Event(), []
    line = Outbox("x", never)
    line.put(lambda: release.wait(30) and None)
    for number in range(10):
        line.put(lambda number=number: got.append(number))
    release.set()
    assert line.flush(30)
    assert got == [0, 1]
    assert "too many" in caplog.text
