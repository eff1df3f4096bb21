"""``pivotopd submit`` and ``stage --to``: what is shown, submitted once, found again, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import app
from pivotopd.exits import run_command
from tests.launch.fake_slurm import FakeSlurm, fake_slurm

SMALL = (
    "iterations=1",
    "evaluation.every=0",
    "environment.prompt=compact",
    "environment.generated={train: 2, valid: 2, test: 2}",
    "name=r",
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A SLURM that takes every job, each with the next number, and lets all of them wait."""
    slurm = fake_slurm(tmp_path / "slurm", monkeypatch)
    counts = 'wc -l <"$here/sbatch.calls"'
    (slurm.folder / "sbatch").write_text(
        f'#!/bin/bash\nhere={slurm.folder}\nprintf "%s\\n" "$*" >>"$here/sbatch.calls"\n{counts}\n'
    )
    slurm.answer("squeue", "PENDING|Priority")
    return slurm


def pivotopd(*arguments: str) -> int:
    return run_command(lambda: app(list(arguments), standalone_mode=False))


def submit(root: Path, *more: str) -> int:
    return pivotopd("submit", *SMALL, f"root={root}", "--to", "slurm", *more)


def test_a_dry_run_shows_the_script_and_does_nothing(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(tmp_path / "root", "--dry-run", "launch.resources.gpus=4") == 0
    shown = capsys.readouterr().out
    assert "rollout 0000       would run" in shown
    assert "#SBATCH --gres=gpu:4\n" in shown
    assert f"{tmp_path}/root/r/jobs/train-" in shown
    assert not slurm.calls("sbatch")
    assert not (tmp_path / "root").exists()


def test_each_stage_shows_its_own_resources(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("launch.resources.partition=cpu", "launch.stages.update={gpus: 8, partition: gpu}")
    assert submit(tmp_path / "root", "--dry-run", "--per-stage", *more) == 0
    scripts = capsys.readouterr().out.split("#!/bin/bash\n")[1:]
    assert [script.split(",")[0].removeprefix("# ") for script in scripts] == [
        "warm_start", "evaluate-0000", "rollout-0000", "label-0000", "recover-0000", "update-0000",
    ]  # fmt: skip
    assert ["gpu:8" in script for script in scripts] == [False] * 5 + [True]
    assert ['--partition="gpu"' in script for script in scripts] == [False] * 5 + [True]


def test_the_stages_of_a_detached_training_wait_for_each_other(slurm: FakeSlurm, tmp_path: Path) -> None:
    assert submit(tmp_path / "root", "--per-stage", "--detach") == 0
    calls = slurm.calls("sbatch")
    order = ["warm_start", "evaluate-0000", "rollout-0000", "label-0000", "recover-0000", "update-0000"]
    names = [call.split("--job-name=")[1].split(" ")[0] for call in calls]
    assert [name.rpartition("-")[0] for name in names] == [*order, "evaluate-0001"]
    after = [call.partition("afterok:")[2].partition(" ")[0].split(":") for call in calls]
    assert [sorted(ids) for ids in after] == [
        [""], ["1"], ["1"], ["3"], ["1", "3", "4"], ["1", "3", "4", "5"], ["2", "6"],
    ]  # fmt: skip
    assert submit(tmp_path / "root", "--per-stage", "--detach") == 0
    assert slurm.calls("sbatch") == calls, "all of them are found"


def test_a_whole_training_is_one_job_with_its_own_configuration(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert submit(Path("root"), "--detach") == 0
    [call] = slurm.calls("sbatch")
    script = Path(call.rpartition(" ")[2])
    assert script.is_relative_to(tmp_path / "root" / "r" / "jobs"), "the address does not hang on a folder"
    record = json.loads((script.parent / "job.json").read_text())
    assert record["job"] == "1"
    assert record["arguments"][:3] == ["-m", "flows.cli", "train"]
    assert f"root: {tmp_path}/root\n" in Path(record["arguments"][3]).read_text()
    assert submit(Path("root"), "--detach") == 0
    assert len(slurm.calls("sbatch")) == 1
    assert submit(Path("root"), "--detach", "launch.resources.gpus=1") == 0
    assert len(slurm.calls("sbatch")) == 1, "other resources are no other work"
    assert submit(Path("root"), "--detach", "iterations=2") == 0
    assert len(slurm.calls("sbatch")) == 2


def test_no_key_of_the_environment_stands_in_what_is_written(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_KEY", "planted-key-4711")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-key-4712")
    assert submit(tmp_path / "root", "--per-stage", "--detach") == 0
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert any(path.name == "job.sh" for path in files)
    assert not [path for path in files if b"planted-key" in path.read_bytes()]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "kubernetes"), "a pod needs a container image"),
        (("--to", "kubernetes", "--per-stage"), "a pod needs a container image"),
        (
            ("--to", "kubernetes", "--per-stage", "--detach", "launch.resources.image=registry/pivotopd"),
            "kubernetes starts no job after another",
        ),
        (("--per-stage", "launch.stages.recover.ranks=2"), "stage recover is the work of one process"),
        (("launch.resources.nodes=2",), "a whole training is one process"),
        (("--to", "lsf"), "there is no platform 'lsf'"),
    ],
)
def test_a_refusal_stands_alone_and_leaves_nothing(
    slurm: FakeSlurm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dry_run: bool,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert submit(tmp_path / "root", *arguments, *(["--dry-run"] if dry_run else [])) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert not slurm.calls("sbatch")
    assert not (tmp_path / "root").exists()


def test_a_stage_goes_as_one_job_with_its_overrides(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    assert submit(root, "--detach") == 0
    command = ("stage", "recover", "--run", f"{root}/r", "--iteration", "0", "recovery.depth=1")
    assert pivotopd(*command, "--to", "slurm", "--dry-run") == 0
    assert len(slurm.calls("sbatch")) == 1
    assert pivotopd(*command, "--to", "slurm", "--detach") == 0
    record = json.loads(Path(slurm.calls("sbatch")[1].rpartition(" ")[2]).with_name("job.json").read_text())
    assert record["arguments"] == [
        "-m", "flows.cli", "stage", "recover", f"--run={root}/r", "--iteration=0", "--", "recovery.depth=1",
    ]  # fmt: skip
    capsys.readouterr()
    assert pivotopd(*command, "--detach") == 2
    assert "--detach is for jobs" in capsys.readouterr().err


def test_an_update_on_several_ranks_is_run_again_by_the_stage_that_knows_ranks(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    root, rate = tmp_path / "root", "update.learning_rate=2e-4"
    assert submit(root, "--detach") == 0
    command = (
        "stage",
        "update",
        "--run",
        f"{root}/r",
        "--iteration",
        "0",
        "launch.stages.update.ranks=2",
        rate,
    )
    assert pivotopd(*command, "--to", "slurm", "--detach") == 0
    record = json.loads(Path(slurm.calls("sbatch")[1].rpartition(" ")[2]).with_name("job.json").read_text())
    assert record["arguments"] == [
        "-m", "stages.update", f"--run={root}/r", "--iteration=0", "--", "launch.stages.update.ranks=2", rate,
    ]  # fmt: skip
