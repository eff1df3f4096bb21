"""``pivotopd train --resume`` and ``--fork`` as a person gives them, from start to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pivotopd.artifacts import RunLayout, list_artifacts
from tests.flows.runs import PATIENCE_S, environment_of, source, train
from tests.small_student import small_config


def resume(uri: str, home: Path, *arguments: str) -> str:
    """Run ``pivotopd train --resume`` to its end and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "train", "--resume", uri, *arguments],
        cwd=source(),
        env=environment_of(home),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(printed: str) -> dict[str, bool]:
    """Return which jobs were cached, by name."""
    lines = [line for line in printed.splitlines() if line[:8].strip() and line[16:].split()[:1]]
    return {
        line[:16].strip(): " cached " in line
        for line in lines
        if line.split()[0] in ("rollout", "label", "recover", "update", "evaluate")
        and line.split()[1].isdecimal()
        and len(line.split()[1]) == 4
    }


@pytest.mark.slow(seconds=90)
def test_a_run_is_resumed_and_forked(student: Path, tmp_path: Path) -> None:
    root, home = tmp_path / "root", tmp_path / "home"
    first = train(small_config(root, student, iterations=1), home)
    assert first.returncode == 0, first.stderr
    longer = states(resume(f"{root}/small", home, "iterations=2"))
    assert longer["update 0000"]
    assert not longer["update 0001"]
    made = resume(f"{root}/small", home, "--fork", "own", "--from", "1", "update.learning_rate=2e-4")
    assert "shares 6 artifacts of small by reference" in made
    forked = states(made)
    assert forked["rollout 0000"]
    assert forked["update 0000"]
    assert not forked["rollout 0001"]
    assert not forked["update 0001"]
    again = states(resume(f"{root}/own", home))
    assert again
    assert all(again.values())
    own = {one.manifest.iteration for one in list_artifacts(RunLayout(str(root), "own").store, "own")}
    assert own == {1, 2}
