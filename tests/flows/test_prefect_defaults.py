"""What Prefect says by itself, and how much of it a person sees."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from flows.prefect_defaults import set_prefect_defaults


def kinds_of(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_of(one)


@pytest.fixture
def workers() -> Iterator[list[logging.Logger]]:
    """The loggers of all threads that Prefect starts to send something, with their levels put back."""
    import prefect.concurrency.services
    import prefect.concurrency.v1.services
    import prefect.events.worker
    import prefect.logging.handlers
    from prefect._internal.concurrency import services

    general = {services.QueueService, services.FutureQueueService, services.BatchedQueueService}
    used = [one for one in kinds_of(services._QueueServiceBase) if one not in general]
    assert {prefect.events.worker.EventsWorker, prefect.logging.handlers.APILogWorker} <= set(used)
    loggers = [logging.getLogger(one.__name__) for one in used]
    before = [one.level for one in loggers]
    yield loggers
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)


@pytest.mark.parametrize(
    ("level", "shown"), [(None, False), ("debug", True), ("WARNING", True), ("ERROR", False)]
)
def test_prefect_s_threads_say_what_prefect_may_say(
    workers: list[logging.Logger], monkeypatch: pytest.MonkeyPatch, level: str | None, shown: bool
) -> None:
    if level is None:
        monkeypatch.delenv("PREFECT_LOGGING_LEVEL", raising=False)
    else:
        monkeypatch.setenv("PREFECT_LOGGING_LEVEL", level)
    set_prefect_defaults()
    assert [one.isEnabledFor(logging.WARNING) for one in workers] == [shown] * len(workers)
