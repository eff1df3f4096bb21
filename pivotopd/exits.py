"""How a command ends: errors become their message and exit code, stop signals become ``Preempted``.

Used by every command that a person or a scheduler starts, so that all end alike.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from pivotopd.errors import PivotError, Preempted, StorageError

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""A scheduler's request to stop: Kubernetes sends the first, SLURM's ``--signal=USR1`` the second."""

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells count it: 128 + SIGINT."""

READER_GONE: Final = 141
"""Exit code where whoever read the output has gone, as shells count it: 128 + SIGPIPE."""

EXIT_CODES: Final = {
    0: "done",
    1: "a defect of the program: it keeps its traceback",
    2: "a configuration, option or variable is not acceptable, or something needed is not installed",
    3: "an input artifact or checkpoint is missing, damaged or of another schema",
    4: "an environment or a game cannot be used, or a check of games failed",
    5: "the teacher cannot be reached",
    6: "nothing to train on: no row carries a signal",
    7: "weights, losses or gradients are not finite, or engine and learner differ",
    8: "runs of a comparison are missing; its report says which",
    9: "a cluster ended or lost a job, or cannot be reached; processes of update or environment ended",
    10: "an engine that generates has ended, cannot be reached, or holds another policy",
    74: "the store cannot be written or reached",
    75: "asked to stop; start the same command again to go on",
    INTERRUPTED: "interrupted with Ctrl-C",
    READER_GONE: "the reader of the output has gone, as in `pivotopd ... | head`",
}
"""Meaning of every exit code; the manual's table is made from it."""


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


def run_command(body: Callable[[], int | None]) -> int:
    """Run a command's body and return its exit code.

    A :class:`PivotError` is printed on stderr in its three parts, and so is a full disk wherever it was met,
    such as under a redirected output. A reader that has gone ends the command without a word. Every other
    exception is a defect and is raised on, with its traceback.
    """
    _open_closed_streams()
    try:
        return _run(body)
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer or Rich met it first
            return _reader_gone()
        raise


def _run(body: Callable[[], int | None]) -> int:
    try:
        with stop_signals():
            return _flushed(body)
    except PivotError as error:
        _say(f"error: {error}")
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or "the output of this command, or a temporary folder"
        full = StorageError(f"the disk is full: {error.strerror}", where=str(where), mend="free some space")
        _say(f"error: {full}")
        return full.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except SystemExit as end:
        if end.code == INTERRUPTED:  # Typer met the KeyboardInterrupt first
            _say("interrupted")
        raise
    except Exception as error:
        asked = stop_behind(error)
        if asked is None:
            raise
        _say("interrupted" if isinstance(asked, KeyboardInterrupt) else f"error: {asked}")
        return asked.exit_code if isinstance(asked, Preempted) else INTERRUPTED


def stop_behind(error: BaseException) -> Preempted | KeyboardInterrupt | None:
    """Return the request to stop that an error followed from: a library may stumble over one midway."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Preempted | KeyboardInterrupt):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _flushed(body: Callable[[], int | None]) -> int:
    """Run a body and write out what it printed; later nobody could catch what that meets."""
    try:
        code = body() or 0
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


@contextmanager
def stop_signals() -> Iterator[None]:
    """Raise ``Preempted`` in the main thread at the first stop signal; a second one kills as usual."""
    before = {number: signal.signal(number, _stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise Preempted(
        f"asked to stop by {signal.Signals(number).name}",
        mend="start the same command again: what is finished is kept",
    )


def _reader_gone() -> int:
    """Let what is still buffered go nowhere, so that the interpreter does not stumble over it at its end."""
    with suppress(OSError, ValueError):  # a stream without a descriptor holds nothing back
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE


def _open_closed_streams() -> None:
    """Put the null device where a caller closed a standard stream, which Python leaves as None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the life of the process


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
