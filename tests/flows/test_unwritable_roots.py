"""A root that cannot be written, for want of a right or of room: one clear error, and no half of a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.cli import app
from pivotopd.config_files import dump_config
from pivotopd.exits import run_command
from stages.runner import perform
from stages.runs import open_run
from tests.small_student import small_config

pytestmark = pytest.mark.usefixtures("prefect_here")
WORDS = {"read-only": "Read-only file system", "full": "No space left on device"}


def mount(*arguments: str) -> None:
    subprocess.run([shutil.which("mount") or "mount", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def begun(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a run with its first rollout."""
    root = tmp_path_factory.mktemp("begun") / "root"
    work, plan = open_run(small_config(root, student, iterations=1, tracking__enabled=False))
    perform(work, plan.job("rollout", 0))
    work.close()
    return root


@pytest.fixture(params=WORDS)
def disk(request: pytest.FixtureRequest, begun: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A disk of its own with a copy of that root, which takes not another byte, and why."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=4m", "none", str(folder))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot mount a disk here: {error.stderr.decode().strip()}")
    try:
        shutil.copytree(begun, folder / "root")
        if request.param == "full":
            _fill(folder / "filler")
        else:
            mount("-o", "remount,ro", str(folder))
        yield request.param, folder
    finally:
        subprocess.run([shutil.which("umount") or "umount", "-l", str(folder)], check=True)


def _fill(file: Path) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError:
        os.close(descriptor)


def files(disk: Path) -> set[Path]:
    return {path for path in disk.rglob("*") if path.is_file()}


@pytest.fixture
def commands(student: Path, tmp_path: Path, disk: tuple[str, Path]) -> dict[str, list[str]]:
    """Commands that write into a new root on the disk, or into the one that is there."""
    old, new = disk[1] / "root", disk[1] / "new"
    config = small_config(new, student, iterations=1, tracking__enabled=False)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    nameless = config.model_copy(update={"name": None})
    (tmp_path / "nameless.yaml").write_text(dump_config(nameless))
    arms = {"pivotopd": {}, "preventive_only": {"recovery.depth": 0}}
    said = {"name": "two", "base": "nameless.yaml", "seeds": [0], "methods": arms}
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(said))
    elsewhere = shutil.copytree(old, tmp_path / "elsewhere")
    return {
        "train": ["train", str(tmp_path / "config.yaml")],
        "go on": ["train", str(tmp_path / "config.yaml"), f"root={old}"],
        "fork": ["train", "--resume", f"{old}/small", "--fork", "other", "--from", "0"],
        "stage": ["stage", "label", "--run", f"{old}/small", "--iteration", "0", "--only"],
        "diagnose": ["diagnose", str(student), f"root={new}"],
        "copy": ["runs", "copy", f"{elsewhere}/small", str(new)],
        "games": ["games", "generate", str(new)],
        "compare": ["compare", str(tmp_path / "experiment.yaml")],
    }


@pytest.mark.parametrize("name", ["train", "go on", "fork", "stage", "diagnose", "copy", "games", "compare"])
def test_a_root_that_takes_nothing_is_one_error(
    name: str, disk: tuple[str, Path], commands: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    why, folder = disk
    before = files(folder)
    assert run_command(lambda: app(commands[name], standalone_mode=False)) == 74
    shown = capsys.readouterr()
    assert WORDS[why] in shown.err.splitlines()[0]
    assert [line.split(":")[0].strip() for line in shown.err.splitlines()] == ["error", "where", "mend"]
    assert str(folder) in shown.err
    assert "exception" not in shown.out
    assert files(folder) == before
    assert run_command(lambda: app(["runs", "verify", f"{folder}/root/small"], standalone_mode=False)) == 0
