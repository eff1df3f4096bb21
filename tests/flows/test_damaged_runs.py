"""A damaged file of any artifact of a run: one clear error of whoever reads it, and nothing half written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import app
from flows.train import jobs_of
from pivotopd.exits import run_command
from stages.runner import perform
from stages.runs import open_run
from tests.small_student import small_config

pytestmark = pytest.mark.usefixtures("prefect_here")
RUN = "small"
Damage = Callable[[Path], None]


def cli(*arguments: str) -> int:
    return run_command(lambda: app(list(arguments), standalone_mode=False))


@pytest.fixture(scope="module")
def finished(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a finished run of one iteration."""
    root = tmp_path_factory.mktemp("finished") / "root"
    work, plan = open_run(small_config(root, student, iterations=1, tracking__enabled=False))
    for job in jobs_of(plan):
        perform(work, job)
    work.close()
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "root")


def folder_of(root: Path, stage: str, iteration: int = 0) -> Path:
    """Return the folder of the run's only artifact of a stage and iteration."""
    place = RUN if stage == "checkpoint" else f"{RUN}/iterations/{iteration:04d}"
    [manifest] = (root / place / ("checkpoints" if stage == "checkpoint" else stage)).glob("*/manifest.json")
    return manifest.parent


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def gone(file: Path) -> None:
    file.unlink()


def swapped(file: Path) -> None:
    """Put the bytes of another file in its place."""
    other = next(one for one in sorted(file.parents[4].rglob(f"*{file.suffix}")) if one.name != file.name)
    shutil.copy(other, file)


def written(text: str) -> Damage:
    return lambda file: file.write_text(text) and None


def edited(**changes: object) -> Damage:
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | changes)) and None


MANIFESTS = {
    "half": half,
    "empty": written(""),
    "a list": written("[1, 2]"),
    "deep": written("[" * 100_000),
    "no parts": edited(parts=3),
    "another digest": edited(digest="0" * 64),
    "other counts": edited(counts={"rows": 1}),
    "a newer format": edited(format_version=2),
}
PARTS = {"half": half, "flipped": flipped, "gone": gone, "swapped": swapped}

READERS = {
    ("rollout", 0): ("label", 0),
    ("label", 0): ("recover", 0),
    ("recover", 0): ("update", 0),
    ("checkpoint", 0): ("evaluate", 1),
    ("evaluate", 0): ("evaluate", 1),
}
"""An artifact, and a stage that reads it."""
READ = {
    "rollout": "turns-*",
    "label": "labels-*",
    "recover": "turns-*",
    "checkpoint": "*/model.safetensors",
    "evaluate": "turns-*",
}
"""The file of the artifact that this stage reads."""


def tree(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def refused(root: Path, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Run a command that must end with one error, exit code 3, and the same files as before."""
    before = tree(root)
    capsys.readouterr()
    assert cli(*command) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert [line.split(":")[0].strip() for line in error.splitlines()] == ["error", "where", "mend"]
    assert tree(root) == before
    return error


def again(root: Path, stage: str, iteration: int) -> list[str]:
    """Return the command of a stage whose work must be done again: what it made is taken away."""
    shutil.rmtree(folder_of(root, stage, iteration))
    return ["stage", stage, "--run", f"{root}/{RUN}", "--iteration", str(iteration), "--only"]


@pytest.mark.parametrize("damage", MANIFESTS)
@pytest.mark.parametrize("artifact", READERS)
def test_a_damaged_manifest_is_met_before_any_work(
    artifact: tuple[str, int], damage: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = folder_of(root, *artifact) / "manifest.json"
    MANIFESTS[damage](manifest)
    assert str(manifest) in refused(root, capsys, *again(root, *READERS[artifact]))
    assert cli("runs", "verify", f"{root}/{RUN}") == 3
    assert str(manifest) in "".join(capsys.readouterr().out.split("\n"))


@pytest.mark.parametrize("damage", PARTS)
@pytest.mark.parametrize("artifact", READERS)
def test_a_damaged_file_of_an_input_is_named(
    artifact: tuple[str, int], damage: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(root, *artifact)
    [file] = folder.glob(READ[artifact[0]])
    PARTS[damage](file)
    assert str(file) in refused(root, capsys, *again(root, *READERS[artifact]))
    assert cli("runs", "verify", f"{root}/{RUN}") == 3
    assert str(file) in "".join(capsys.readouterr().out.split("\n"))


@pytest.mark.parametrize("artifact", [("update", 0), ("evaluate", 1), ("checkpoint", 0)])
def test_a_damaged_manifest_beside_the_inputs_is_met_before_any_work(
    artifact: tuple[str, int], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What becomes stale is read from all manifests; after the work it would be too late to say so."""
    manifest = folder_of(root, *artifact) / "manifest.json"
    half(manifest)
    assert str(manifest) in refused(root, capsys, *again(root, "label", 0))


def test_an_input_that_is_gone_is_met_before_the_first_of_several_stages(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(root, "checkpoint")
    gone(folder / "manifest.json")
    command = ("evaluate", f"{root}/{RUN}", "evaluation.temperature=0.7")
    assert str(folder) in refused(root, capsys, *command), "the start policy is not evaluated for nothing"


@pytest.mark.parametrize("what", ["folder", "manifest.json"])
def test_a_checkpoint_that_is_gone_is_made_again_with_the_same_weights(
    what: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The update's own artifact is still there; alone it must not pass for the whole of its work."""
    folder = folder_of(root, "checkpoint")
    weights = {path.name: path.read_bytes() for path in folder.glob("*/model.safetensors")}
    notes = json.loads((folder / "manifest.json").read_text())["notes"]
    if what == "folder":
        shutil.rmtree(folder)
    else:
        gone(folder / what)
    command = ["stage", "update", "--run", f"{root}/{RUN}", "--iteration", "0", "--only"]
    capsys.readouterr()
    assert cli(*command, "--dry-run") == 0
    assert "would run" in capsys.readouterr().out
    assert cli(*command) == 0
    assert {path.name: path.read_bytes() for path in folder.glob("*/model.safetensors")} == weights
    assert json.loads((folder / "manifest.json").read_text())["notes"] == notes
    assert cli(*command, "--dry-run") == 0
    assert "cached" in capsys.readouterr().out
