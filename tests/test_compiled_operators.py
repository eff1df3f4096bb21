"""Compiled operators: apart for each installation, and never blocked by what a killed process left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pivotopd.compiled_operators import extensions_folder, one_at_a_time

WORKING = """
import pathlib, sys, time
from pivotopd.compiled_operators import one_at_a_time
operator = pathlib.Path(sys.argv[1]) / "operator"
with one_at_a_time(operator.parent):
    operator.mkdir(exist_ok=True)
    (operator / "lock").touch(exist_ok=False)
    print("compiling", flush=True)
    time.sleep(float(sys.argv[2]))
    (operator / "lock").unlink()
    print("done", flush=True)
"""


def work(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that compiles for some time."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKING, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_two_environments_do_not_share_compiled_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    here = extensions_folder()
    assert here == extensions_folder()
    monkeypatch.setattr(sys, "prefix", "/another/.venv")
    elsewhere = extensions_folder()
    assert elsewhere.parent == here.parent
    assert elsewhere != here


def test_one_that_waits_while_another_compiles_has_its_turn_when_that_one_is_killed(tmp_path: Path) -> None:
    first = work(tmp_path, 600)
    assert first.stdout is not None
    assert first.stdout.readline() == "compiling\n"
    waiting = [work(tmp_path, 0), work(tmp_path, 0)]
    with pytest.raises(subprocess.TimeoutExpired):
        waiting[0].wait(3)
    assert (tmp_path / "operator" / "lock").exists()
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert [one.communicate(timeout=60)[0] for one in waiting] == ["compiling\ndone\n"] * 2


def test_what_a_killed_process_left_behind_is_cleared(tmp_path: Path) -> None:
    killed = work(tmp_path, 600)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "compiling\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (tmp_path / "operator" / "lock").exists(), "nobody has cleared it yet"
    with one_at_a_time(tmp_path):
        assert not (tmp_path / "operator" / "lock").exists()
