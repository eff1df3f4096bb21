"""A process that plays environments for another one: calls in, answers out, in order.

A thread takes the calls in, so that who sends them never waits for room; it ends the process at once when the
other side has gone, whatever the process is doing then.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, Literal

from pivotopd.config import EnvironmentSection
from pivotopd.environments.base import Env, StepResult
from pivotopd.errors import PivotError

What = Literal["reset", "load", "restore", "step", "snapshot", "close"]

STARTED: Final = -1
"""Number of the answer that says that the process is ready."""


@dataclass(frozen=True, slots=True)
class Order:
    """A call.

    Attributes:
        number: Names it in its answer.
        slot: The instance that is meant; a new number is a new instance.
        what: The method, or ``close``, which has no answer.
        arguments: Its arguments.
    """

    number: int
    slot: int
    what: What
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Stand:
    """An answer: what the method returned, and where the instance stands now.

    Attributes:
        value: A :class:`StepResult`, or a snapshot.
        state: The instance's ``dump``.
        state_hash: Its ``state_hash``.
    """

    value: Any
    state: bytes | None
    state_hash: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed: with an error of ours, or the text of any other."""

    error: PivotError | None
    text: str = ""


def serve(section: EnvironmentSection, pipe: Connection) -> None:
    """Play until the other side has gone.

    Args:
        section: The environment; it is played in this very process.
        pipe: Orders come in, pairs of a number and a :class:`Stand` or :class:`Failure` go out.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; the other side decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    orders: SimpleQueue[Order] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    try:
        desk = _Desk(section)
        pipe.send((STARTED, None))
        while True:
            order = orders.get()
            answer = desk.answer(order)
            if order.what != "close":
                pipe.send((order.number, answer))
    except OSError:  # the other side has gone
        os._exit(0)


def _listen(pipe: Connection, orders: SimpleQueue[Order]) -> None:
    try:
        while True:
            orders.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)


class _Desk:
    """A process's instances. Those that were closed are used again: a stock engine gives nothing back."""

    def __init__(self, section: EnvironmentSection) -> None:
        from pivotopd.environments.registry import open_here  # noqa: PLC0415 - it knows the workers too

        self._environment = open_here(section)
        self._open: dict[int, Env] = {}
        self._free: list[Env] = []

    def answer(self, order: Order) -> Stand | Failure | None:
        """Do what is asked; None for an instance that is closed."""
        if order.what == "close":
            if order.slot in self._open:
                self._free.append(self._open.pop(order.slot))
            return None
        if order.slot not in self._open:
            self._open[order.slot] = self._free.pop() if self._free else self._environment.open()
        return _done(self._open[order.slot], order.what, order.arguments)


def _done(env: Env, what: What, arguments: Sequence[Any]) -> Stand | Failure:
    try:
        value: StepResult | Any = getattr(env, what)(*arguments)
        return Stand(value, env.dump(), env.state_hash())
    except PivotError as error:
        return Failure(error)
    except Exception:  # whatever it is, the other side raises it
        return Failure(None, traceback.format_exc())
