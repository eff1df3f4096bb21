"""A stop does not wait for engines that still compute, however many there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from pivotopd.errors import Preempted
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.services.client import RemoteEngine
from pivotopd.services.pool import EnginePool
from tests.child_process import end_with_parent, wait_until
from tests.services.seeded import REQUESTS, SAMPLING, Hovering
from tests.services.test_server import running

PATIENCE_S = 120


class Lasting(Hovering):
    """An engine whose calls last until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Event()
        self.goes_on.clear()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        self.asked.set()
        assert self.goes_on.wait(PATIENCE_S)
        return super().generate(requests, sampling)


def batch(pool: EnginePool | RemoteEngine) -> None:
    pool.generate(REQUESTS, SAMPLING)


def flight(pool: EnginePool | RemoteEngine) -> None:
    begun = pool.begin(SAMPLING)
    try:
        begun.send(dict(enumerate(REQUESTS)))
        begun.land()
    finally:
        begun.close()


def test_ctrl_c_ends_a_batch_while_every_engine_works() -> None:
    engines = [Lasting(), Lasting()]
    pool = EnginePool({"a": engines[0], "b": engines[1]}, 100)

    def press() -> None:
        for engine in engines:
            assert engine.asked.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    presser = Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        pool.generate(REQUESTS, SAMPLING)
    presser.join()
    assert not any(engine.goes_on.is_set() for engine in engines)
    pool.close()
    for engine in engines:
        engine.goes_on.set()


SCRIPT = """
import sys
from pivotopd.errors import Preempted
from pivotopd.services.client import RemoteEngine
from pivotopd.services.pool import EnginePool
from pivotopd.stops import StopSignal, stop_signals
from tests.services import test_interrupts

engines = {url: RemoteEngine(url) for url in sys.argv[2:]}
pool = EnginePool(engines, 100) if len(engines) > 1 else engines[sys.argv[2]]
with stop_signals():
    try:
        getattr(test_interrupts, sys.argv[1])(pool)
    except StopSignal:
        pool.close()
        sys.exit(Preempted.exit_code)
"""


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("call", [batch, flight])
def test_a_process_ends_at_once_while_its_servers_compute(
    call: Callable[[EnginePool | RemoteEngine], None], servers: int
) -> None:
    engines = [Lasting() for _ in range(servers)]
    with ExitStack() as stack:
        urls = [stack.enter_context(running(engine)) for engine in engines]
        for engine in engines:
            stack.callback(engine.goes_on.set)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, call.__name__, *urls],
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
        )
        for engine in engines:
            assert (engine.works if call is flight else engine.asked).wait(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == Preempted.exit_code
        assert not any(engine.goes_on.is_set() for engine in engines)
        assert not any(engine.given_up for engine in engines)
        for engine in engines:
            engine.goes_on.set()
        if call is flight:
            wait_until(lambda: all(engine.given_up for engine in engines), PATIENCE_S, "it goes on")
