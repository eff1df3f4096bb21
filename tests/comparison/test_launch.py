"""Processes of a comparison: exit codes, logs, one warm start, and an end for all."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pivotopd.comparison.launch import STOPPED, Launcher, Start, error_line, last_line


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher({"GREETING": "hello"}) as made:
        yield made


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_run_has_its_code_its_log_and_its_variables(launcher: Launcher, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    said = "import os, sys; print(os.environ['GREETING']); print('bad', file=sys.stderr); sys.exit(6)"
    assert launcher.run(python(said), log, None) == 6
    assert sorted(log.read_text().split()) == ["bad", "hello"]
    assert launcher.run(python("print('again')"), log, None) == 0
    assert last_line(log) == "again"
    assert len(log.read_text().split()) == 3, "what an earlier try said is kept"


def test_the_last_line_that_says_something(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"x" * 10_000 + b"\nsaid \xff\n\n  \n")
    assert last_line(log) == error_line(log) == "said \ufffd"
    log.write_text("one\nerror: it broke\n  where: here\n  mend: mend it\n")
    assert error_line(log) == "error: it broke"


def test_one_run_makes_the_warm_start_and_the_others_wait_for_it(launcher: Launcher, tmp_path: Path) -> None:
    made = tmp_path / "warm_start"
    code = f"""
import pathlib, time
made = pathlib.Path({str(made)!r})
if not made.exists():
    with open({str(tmp_path / "makers")!r}, "a") as makers:
        makers.write("x")
    time.sleep(1.0)
    made.touch()
time.sleep(0.2)
"""
    start = Start("digest", made.exists)
    codes: list[int] = []
    threads = [
        threading.Thread(
            target=lambda i=i: codes.append(launcher.run(python(code), tmp_path / f"{i}", start))
        )
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0, 0, 0]
    assert (tmp_path / "makers").read_text() == "x"


def test_a_warm_start_that_fails_is_tried_by_the_next_run(launcher: Launcher, tmp_path: Path) -> None:
    start = Start("digest", lambda: False)
    assert launcher.run(python("raise SystemExit(7)"), tmp_path / "a", start) == 7
    assert launcher.run(python("pass"), tmp_path / "b", start) == 0


def test_stopping_asks_every_run_and_starts_no_other(tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready", flush=True)
time.sleep(600)
"""
    launcher, codes = Launcher({}), {}
    threads = [
        threading.Thread(
            target=lambda i=i: codes.update({i: launcher.run(python(code), tmp_path / f"{i}", None)})
        )
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    while not all(last_line(tmp_path / f"{i}") == "ready" for i in range(2)):
        time.sleep(0.05)
    launcher.stop()
    for thread in threads:
        thread.join()
    assert codes == {0: 75, 1: 75}
    assert launcher.run(python("print('never')"), tmp_path / "late", None) == STOPPED
    assert not (tmp_path / "late").exists()
