"""``pivotopd diagnose`` from the command line: a trained run, then a model folder, then what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pivotopd.config_files import dump_config
from tests.flows.runs import PATIENCE_S, environment_of, source, train
from tests.small_student import small_config

pytestmark = pytest.mark.slow
SETTINGS = (
    "diagnosis.split=train", "diagnosis.tasks=4", "diagnosis.temperature=1.0", "diagnosis.repeats=1",
    "diagnosis.replays=2", "diagnosis.draws=100", "diagnosis.recovery_draws=100",
)  # fmt: skip
TITLES = (
    "Pivotal mistakes by the oracle", "Interventions by replay", "Recovery from known mistakes",
    "Teacher and oracle agree within one turn", "Probability of the mistake and of the right action",
)  # fmt: skip


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "diagnose", *arguments],
        cwd=source(),
        env=environment_of(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def root(student: Path, home: Path) -> Path:
    """A root with a run of one update."""
    config = small_config(home / "root", student, iterations=1, evaluation__recovery_mistakes=0)
    done = train(config, home)
    assert done.returncode == 0, done.stderr
    return home / "root"


@pytest.fixture(scope="module")
def first(home: Path, root: Path) -> subprocess.CompletedProcess[str]:
    return command(home, f"{root}/small", *SETTINGS)


def mlflow_runs(root: Path) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    return list(client.search_runs([one.experiment_id for one in client.search_experiments()]))


def test_a_run_is_diagnosed_with_its_start_beside_it(
    first: subprocess.CompletedProcess[str], root: Path
) -> None:
    assert first.returncode == 0, first.stderr
    for title in ("Diagnosis of small, policy after 1 updates", *TITLES):
        assert title in first.stdout
    assert "published (other models)" in first.stdout
    assert "start policy" in first.stdout
    (page,) = root.glob("small/iterations/0001/diagnosis_report/*/content-*/report.md")
    assert f"report: {page}" in first.stdout
    assert all(
        (page.parent / name).is_file() for name in ("failures.png", "interventions.png", "recovery.png")
    )


def test_it_is_a_run_below_the_training_in_mlflow(
    first: subprocess.CompletedProcess[str], root: Path
) -> None:
    assert first.returncode == 0
    runs = {run.data.tags["pivotopd.run_uri"]: run for run in mlflow_runs(root)}
    training = runs[f"{root}/small"]
    (diagnosis,) = [run for address, run in runs.items() if "/diagnosis_report/" in address]
    assert diagnosis.data.tags["mlflow.parentRunId"] == training.info.run_id
    assert diagnosis.info.status == training.info.status == "FINISHED"
    metrics = diagnosis.data.metrics
    assert {"diagnose/failures/failed", "diagnose/recovery/mistakes", "diagnose/failures/episodes"} <= set(
        metrics
    )
    assert not any(name.startswith("diagnose/") for name in training.data.metrics)
    folder = Path(diagnosis.info.artifact_uri.removeprefix("file://"))
    assert {"report.md", "report.json", "recovery.png", "config.yaml"} <= {
        one.name for one in folder.iterdir()
    }
    inputs = {one.dataset.name for one in diagnosis.inputs.dataset_inputs}
    assert {"diagnose-0000", "diagnose-0001", "mistakes-0000", "intervene-0001"} <= inputs


def test_the_same_command_finds_everything_done(
    first: subprocess.CompletedProcess[str], home: Path, root: Path
) -> None:
    again = command(home, f"{root}/small", *SETTINGS, "rollout.batch_episodes=2")
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert [line.split()[-1] for line in lines[:10]] == ["cached"] * 10

    def tables(text: str) -> str:
        return text[text.index("Diagnosis of") :]

    assert tables(again.stdout) == tables(first.stdout)


def test_a_model_folder_is_diagnosed_as_a_start_policy(home: Path, root: Path, student: Path) -> None:
    settings = home / "model.yaml"
    settings.write_text(dump_config(small_config(home / "models", student, name="model")))
    dry = command(home, str(student), "--config", str(settings), "--dry-run", *SETTINGS)
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.count("would run") == 7
    assert not (home / "models").exists()
    done = command(home, str(student), "--config", str(settings), *SETTINGS)
    assert done.returncode == 0, done.stderr
    assert "Diagnosis of model, start policy" in done.stdout
    assert list((home / "models" / "model" / "iterations" / "0000" / "diagnosis_report").iterdir())
    taken = command(home, str(student), "--config", str(settings), f"root={root}", "name=small", *SETTINGS)
    assert taken.returncode == 0, "the same student under the same name is the same run"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{root}/small", "--iteration", "2"], 3, "the run has 1 updates, not 2"),
        (["{root}/nothing"], 3, "there is no run at this address"),
        (["{root}/small", "--config", "x.yaml"], 3, "this is no model folder"),
        (["{root}/small", "diagnosis.tasks=0"], 2, "diagnosis.tasks"),
        (["{root}/small", "diagnosis.task=1"], 2, "did you mean 'tasks'"),
        (["{root}/small", "diagnosis.mistakes=/nowhere/abc"], 3, "the artifact does not exist"),
    ],
)
def test_what_is_refused(home: Path, root: Path, arguments: list[str], code: int, said: str) -> None:
    done = command(home, *(one.format(root=root) for one in arguments))
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    assert said in done.stderr
