"""How a command ends: errors become their message and exit code, requests to stop theirs.

Used by every command that a person or a scheduler starts, so that all end alike.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from pivotopd.errors import PivotError, Preempted, StorageError
from pivotopd.stops import STOP_SIGNALS, StopSignal, stop_behind, stop_signals

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


def run_and_leave(body: Callable[[], int | None]) -> NoReturn:
    """Run a command's body as :func:`run_command` does, and end the process with its code.

    What ends by itself is not asked to stop any more: a request on the last metres would replace its code, or
    leave a traceback. One that comes after a first request kills as usual, without a word.
    """
    try:
        code: str | int | None = run_command(body)
    except SystemExit as end:  # as Typer ends a command
        code = end.code
    if code not in (Preempted.exit_code, INTERRUPTED):
        for number in (*STOP_SIGNALS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else someone has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run_command(body: Callable[[], int | None]) -> int:
    """Run a command's body and return its exit code.

    A :class:`PivotError` is printed on stderr in its three parts, and so is a full disk wherever it was met,
    such as under a redirected output. A request to stop counts as one whatever else was raised in its wake. A
    reader that has gone ends the command without a word. Every other exception is a defect and is raised on,
    with its traceback.
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
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        return _stopped(stop_behind(end))  # Typer met the request first
    except BaseException as error:
        asked = stop_behind(error)
        if asked is not None:
            return _stopped(asked)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or "the output of this command, or a temporary folder"
            full = f"the disk is full: {error.strerror}"
            error = StorageError(full, where=str(where), mend="free some space")
        if not isinstance(error, PivotError):
            raise
        _say(f"error: {error}")
        return error.exit_code


def _stopped(asked: BaseException | None) -> int:
    if isinstance(asked, StopSignal):
        _say(f"error: {asked}")
        return Preempted.exit_code
    _say("interrupted")
    return INTERRUPTED


def _flushed(body: Callable[[], int | None]) -> int:
    """Run a body and write out what it printed; later nobody could catch what that meets."""
    try:
        code = body() or 0
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


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
