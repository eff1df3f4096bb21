"""A full disk ends a run with its code; with more room the same command goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pivotopd.artifacts import Store, list_artifacts
from tests.flows.runs import train
from tests.small_student import small_config

pytestmark = pytest.mark.slow(seconds=60)


def mount(*arguments: str) -> None:
    subprocess.run([shutil.which("mount") or "mount", *arguments], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for the tables of an iteration, and for no checkpoint."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=1500k", "none", str(folder))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot mount a small disk here: {error.stderr.decode().strip()}")
    yield folder
    subprocess.run([shutil.which("umount") or "umount", "-l", str(folder)], check=True)


def test_a_full_disk_publishes_nothing_by_halves(student: Path, small_disk: Path, tmp_path: Path) -> None:
    config = small_config(small_disk, student, iterations=1, tracking__enabled=False)
    done = train(config, tmp_path / "home")
    assert done.returncode == 74, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "error: cannot write: No space left on device"
    assert str(small_disk) in lines[1]
    assert "free some space" in lines[2]
    assert len(lines) == 3
    kept = {one.path: one.manifest for one in list_artifacts(Store(str(small_disk)))}
    assert {one.stage for one in kept.values()} == {"evaluate", "rollout", "label", "recover"}
    assert not list(small_disk.rglob(".attempt-*"))

    mount("-o", "remount,size=64m", str(small_disk))
    again = train(config, tmp_path / "home")
    assert again.returncode == 0, again.stderr
    now = {one.path: one.manifest for one in list_artifacts(Store(str(small_disk)))}
    assert {path: now[path] for path in kept} == kept
    assert {one.stage for one in now.values()} >= {"update", "checkpoint"}
