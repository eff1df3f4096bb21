"""Requests to stop end the process wherever they meet it, also where Python drops what is raised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pivotopd.stops import StopSignal, stop_behind, stop_signals
from tests.conftest import ROOT

NUMBERS = [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", 130)]

PLACES = {
    "finalizer": """
        class Thing:
            def __del__(self): stop()
        Thing()""",
    "callback of a weak reference": """
        class Thing: pass
        thing = Thing()
        watch = weakref.ref(thing, lambda _: stop())
        del thing""",
    "walk of the garbage collector": """
        class Thing:
            def __del__(self): stop()
        thing = Thing()
        thing.itself = thing
        del thing
        gc.collect()""",
    "two finalizers, one after the other": """
        class Thing:
            def __init__(self, act): self.act = act
            def __del__(self): self.act()
        Thing(stop)
        Thing(lambda: time.sleep(1))""",
    "text that is executed": """
        exec("stop()")""",
    "handler of log records": """
        class Sink(logging.Handler):
            def emit(self, record):
                try: stop()
                except Exception: self.handleError(record)
        logging.getLogger().addHandler(Sink())
        logging.error("a line")""",
    "library that takes it for a failure": """
        try: stop()
        except Exception: pass""",
    "library that makes an error of it": """
        try: stop()
        except BaseException: raise ArtifactError("the tokenizer cannot be read")""",
    "library that stumbles over it": """
        try: stop()
        except BaseException: 1 // 0""",
}
"""Where a signal may arrive; what each does with it is what Python or a library does."""

PROGRAM = """
import gc, logging, os, signal, sys, time, weakref
from pivotopd.errors import ArtifactError
from pivotopd.exits import run_and_leave

def stop():
    os.kill(os.getpid(), signal.Signals[sys.argv[1]])
    time.sleep(0)  # the handler runs here at the latest

def body():
{place}
    time.sleep(60)

run_and_leave(body)
"""


def run(program: str, number: str) -> subprocess.CompletedProcess[str]:
    """Run a program as launchers do, by ``python -m``, which has an end of its own for Ctrl-C."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "stopped.py").write_text(program)
        return subprocess.run(
            [sys.executable, "-m", "stopped", number],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,  # below the minute that the program would go on
        )


@pytest.mark.parametrize(("number", "code"), NUMBERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_request_to_stop_is_not_lost(place: str, number: str, code: int) -> None:
    done = run(PROGRAM.format(place=textwrap.indent(textwrap.dedent(PLACES[place]), "    ")), number)
    assert done.returncode == code, done.stderr
    asked = f"asked to stop by {number}\n  mend:  start the same command again: what is finished is kept"
    assert done.stderr == (f"error: {asked}\n" if code == 75 else "interrupted\n")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR1", "SIGINT"])
@pytest.mark.parametrize(("end", "code"), [("0", 0), ("3", 3), ("sys.exit()", 0), ("sys.exit(2)", 2)])
def test_a_signal_after_the_end_changes_no_code(number: str, end: str, code: int) -> None:
    """Ending a process takes seconds where it has a server of its own to end."""
    done = run(
        "import atexit, os, signal, sys\n"
        "from pivotopd.exits import run_and_leave\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.Signals[sys.argv[1]]))\n"
        f"run_and_leave(lambda: {end})",
        number,
    )
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(("first", "code"), NUMBERS)
@pytest.mark.parametrize("second", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_second_request_after_the_first_was_taken_up_kills_without_a_word(
    first: str, code: int, second: str
) -> None:
    done = run(
        "import atexit, os, signal, sys, time\n"
        "from pivotopd.exits import run_and_leave\n"
        f"atexit.register(lambda: os.kill(os.getpid(), signal.{second}))\n"
        "run_and_leave(lambda: os.kill(os.getpid(), signal.Signals[sys.argv[1]]) or time.sleep(60))",
        first,
    )
    assert done.returncode == -signal.Signals[second]
    assert done.stderr.splitlines()[-1:] == (
        ["interrupted"]
        if code == 130
        else ["  mend:  start the same command again: what is finished is kept"]
    )


def test_what_a_finalizer_raises_of_its_own_is_still_shown() -> None:
    place = "    class Thing:\n        def __del__(self): 1 // 0\n    Thing()\n    sys.exit(0)"
    done = run(PROGRAM.format(place=place), "SIGTERM")
    assert done.returncode == 0
    assert "ZeroDivisionError" in done.stderr


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [*map(signal.getsignal, numbers), sys.unraisablehook]
    with stop_signals():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert [*map(signal.getsignal, numbers), sys.unraisablehook] == before


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda _number, _frame: None])
def test_ctrl_c_that_someone_else_handles_is_left_to_them(theirs: Any) -> None:
    before = signal.signal(signal.SIGINT, theirs)
    try:
        with stop_signals():
            assert signal.getsignal(signal.SIGINT) is theirs
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_request_is_found_behind_what_followed_from_it() -> None:
    asked = StopSignal(signal.SIGTERM)
    followed = ValueError("not ready for this")
    followed.__cause__ = RuntimeError("closing")
    followed.__cause__.__context__ = asked
    assert stop_behind(followed) is asked
    assert stop_behind(asked) is asked
    assert stop_behind(ValueError("its own")) is None
