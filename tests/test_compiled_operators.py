"""Compiled operators: apart for each installation, and never blocked by what a killed process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pivotopd.compiled_operators import extensions_folder, using

COMPILING = """
import pathlib, sys, time
from pivotopd.compiled_operators import using
folder = pathlib.Path(sys.argv[1])
with using(folder):
    (folder / "operator").mkdir(exist_ok=True)
    (folder / "operator" / "lock").touch()
    print("compiling", flush=True)
    time.sleep(600)
"""


def test_two_environments_do_not_share_compiled_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    here = extensions_folder()
    assert here == extensions_folder()
    monkeypatch.setattr(sys, "prefix", "/another/.venv")
    elsewhere = extensions_folder()
    assert elsewhere.parent == here.parent
    assert elsewhere != here


def test_the_lock_of_a_process_at_work_is_left_and_that_of_a_killed_one_is_cleared(tmp_path: Path) -> None:
    lock = tmp_path / "operator" / "lock"
    other = subprocess.Popen(
        [sys.executable, "-c", COMPILING, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "compiling\n"
    with using(tmp_path):
        assert lock.exists(), "it is being compiled"
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert lock.exists(), "nobody has cleared it yet"
    with using(tmp_path):
        assert not lock.exists()


def test_two_can_load_at_once(tmp_path: Path) -> None:
    with using(tmp_path), using(tmp_path):
        assert (tmp_path / ".in_use").exists()
