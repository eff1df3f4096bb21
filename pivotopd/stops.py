"""Requests to stop: a scheduler's signals, and Ctrl-C; how they are raised, held back, found and not lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from pivotopd.errors import Preempted

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""A scheduler's request to stop: Kubernetes sends the first, SLURM's ``--signal=USR1`` the second."""

_AGAIN_S: Final = 0.05
"""How long after a stop that was lost it is asked for again."""


class StopSignal(KeyboardInterrupt):
    """A scheduler's stop signal, raised wherever the main thread is.

    A KeyboardInterrupt, since libraries clean up after Ctrl-C and pass it on; an Exception they would log,
    or take for a failure of their own.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        self.signal = number
        super().__init__(number)

    def __str__(self) -> str:
        return str(
            Preempted(
                f"asked to stop by {signal.Signals(self.signal).name}",
                mend="start the same command again: what is finished is kept",
            )
        )


class Interrupt(KeyboardInterrupt):
    """Ctrl-C.

    A class of its own: where a plain KeyboardInterrupt has passed through an ``exec`` of text, as dataclasses
    make it, ``python -m`` ends by the signal and not with the code that it was to end with.
    """


@contextmanager
def stop_signals() -> Iterator[None]:
    """Raise ``StopSignal`` in the main thread at the first stop signal; a second one kills as usual.

    Ctrl-C raises ``Interrupt``, each time, unless someone has it ignored or handled otherwise.

    Python drops what is raised inside a finalizer or a weak reference's callback, and those run just after a
    walk of its garbage collector, which holds signals up. A request to stop that was lost so, Ctrl-C as well,
    is made again.
    """
    handlers = {number: signal.signal(number, _stop) for number in STOP_SIGNALS}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    hook = sys.unraisablehook

    def found(dropped: sys.UnraisableHookArgs) -> None:
        asked = None if dropped.exc_value is None else stop_behind(dropped.exc_value)
        if asked is None:
            hook(dropped)
        else:
            _ask_again(asked)

    sys.unraisablehook = found
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise StopSignal(number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Interrupt


def _ask_again(asked: BaseException) -> None:
    """Send this process a request's signal once more, from a thread: here it would be lost again."""
    number = getattr(asked, "signal", signal.SIGINT)
    if isinstance(asked, StopSignal):
        signal.signal(number, _stop)
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def stop_behind(error: BaseException) -> BaseException | None:
    """Return the request to stop that an error is or followed from: a library may stumble over one midway."""
    prefect = sys.modules.get("prefect.exceptions")
    stops = (KeyboardInterrupt, prefect.TerminationSignal) if prefect else (KeyboardInterrupt,)
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, stops):
        seen = seen.__cause__ or seen.__context__
    return seen


@contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: a terminal sends it to all, and this process decides.

    They inherit that it is held back in the calling thread; here it arrives at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
