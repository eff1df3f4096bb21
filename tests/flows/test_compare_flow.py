"""A comparison from its file to its report: two arms and two seeds, as processes, with a run that fails."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import app
from pivotopd.config import RunConfig
from pivotopd.exits import run_command
from tests.flows.runs import PATIENCE_S, environment_of, source
from tests.small_student import TASK_TYPES

pytestmark = pytest.mark.slow

BASE = {
    "iterations": 1,
    "environment": {
        "prompt": "compact",
        "max_turns": 8,
        "history": 3,
        "generated": {"train": 4, "valid": 4, "task_types": list(TASK_TYPES)},
    },
    "student": {"kind": "tiny", "layers": 1, "hidden": 64, "intermediate": 64},
    "warm_start": {"games": 60, "steps": 120, "learning_rate": 1e-2, "check_games": 2},
    "rollout": {"tasks": 2, "group_size": 2, "prompt_tokens": 256, "response_tokens": 24},
    "recovery": {"depth": 1, "limit": 4},
    "update": {"learning_rate": 1e-4, "micro_batch_tokens": 1024},
    "evaluation": {"every": 0, "tasks": 4, "recovery_mistakes": 2, "recovery_replays": 2},
}
ARMS = {
    "pivotopd": {},
    "idle": {"method": "grpo", "rollout.group_size": 1, "update.invalid_penalty": 0.0},
}
"""The second has one episode a group, so nothing to compare with: its runs end with exit code 6."""


@dataclass(frozen=True)
class Compared:
    """A comparison on disk, and how its command went."""

    home: Path
    done: subprocess.CompletedProcess[str]

    @property
    def report(self) -> Path:
        return self.home / "root" / "comparisons" / "small"

    def again(self, *options: str) -> subprocess.CompletedProcess[str]:
        return compare(self.home, *options)


def compare(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "compare", str(home / "experiment.yaml"), *options],
        cwd=source(),
        env=environment_of(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    home = tmp_path_factory.mktemp("compare")
    RunConfig.model_validate(BASE)
    (home / "base.yaml").write_text(yaml.safe_dump(BASE | {"root": str(home / "root")}))
    said = {"name": "small", "base": "base.yaml", "seeds": [0, 1], "methods": ARMS}
    (home / "experiment.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    return Compared(home, compare(home, "--jobs", "2"))


def test_a_failed_run_is_shown_and_the_rest_is_reported(compared: Compared) -> None:
    assert compared.done.returncode == 8, compared.done.stderr
    assert "Traceback" not in compared.done.stderr
    assert "2 of 4 runs are missing" in compared.done.stderr
    assert "idle seed 0: failed with exit code 6" in compared.done.stderr
    assert "ended with exit code 6: error: none of" in compared.done.stdout
    lines = compared.done.stdout.splitlines()
    assert sum("starts, " in line for line in lines) == 4
    assert sum("ended with exit code 0" in line for line in lines) == 2
    assert "0 of 2" in compared.done.stdout, "the table says that the arm is missing"
    log = (compared.report / "logs" / "idle-seed1.log").read_text()
    assert "has an advantage other than zero, and nothing was won" in log


def test_the_warm_start_is_made_once(compared: Compared) -> None:
    made = list((compared.home / "root" / "shared" / "warm_start").iterdir())
    assert len(made) == 1
    logs = [file.read_text() for file in (compared.report / "logs").iterdir()]
    assert sorted(line.split()[1] == "cached" for line in warm_starts(logs)) == [False, True, True, True]


def warm_starts(logs: list[str]) -> list[str]:
    """Return each log's line about the finished warm start."""
    return [next(line for line in log.splitlines() if line.startswith("warm_start ")) for log in logs]


def test_the_results_are_of_the_finished_runs(compared: Compared) -> None:
    results = json.loads((compared.report / "results.json").read_text())
    assert {(one["method"], one["seed"]) for one in results if one["iteration"] == 1} == {
        ("pivotopd", None),
        ("pivotopd", 0),
        ("pivotopd", 1),
    }
    (mean,) = [
        one
        for one in results
        if (one["method"], one["seed"], one["metric"], one["iteration"]) == ("pivotopd", None, "success", 1)
    ]
    assert 0.0 <= mean["low"] <= mean["value"] <= mean["high"] <= 1.0
    assert "idle, seed 1: failed with exit code 6" in (compared.report / "results.md").read_text()


def test_mlflow_has_the_runs_below_the_comparison(compared: Compared) -> None:
    client, runs = mlflow_runs(compared)
    (parent,) = [run for run in runs if run.info.run_name == "small"]
    assert parent.info.status == "FAILED"
    names = {
        run.info.run_name for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    }
    folders = {path.parent.name for path in (compared.home / "root").glob("*/config.yaml")}
    assert names == folders
    assert len(names) == 4
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "results.json", "results.md", "curves.png", "bars.png", "types.png"} <= files
    assert "pivotopd/success_mean_of_types" in parent.data.metrics


def mlflow_runs(compared: Compared) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{compared.home}/root/mlflow.db")
    experiment = client.get_experiment_by_name("pivotopd/alfworld/tiny")
    return client, client.search_runs([experiment.experiment_id])


def test_a_list_of_the_runs_says_which_are_complete(compared: Compared) -> None:
    listed = compared.again("--dry-run")
    assert listed.returncode == 0
    states = {line.split()[0]: line.split()[1] for line in listed.stdout.splitlines()}
    assert states == {
        "pivotopd-seed0": "complete",
        "pivotopd-seed1": "complete",
        "idle-seed0": "incomplete:",
        "idle-seed1": "incomplete:",
    }


def test_the_report_alone_is_the_same(compared: Compared) -> None:
    before = (compared.report / "results.json").read_bytes()
    (compared.report / "results.json").unlink()
    again = compared.again("--report-only")
    assert again.returncode == 8
    assert "starts, " not in again.stdout
    assert (compared.report / "results.json").read_bytes() == before


def test_the_figures_are_read_from_mlflow_and_held_against_the_artifacts(
    compared: Compared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    read = ["compare", str(compared.home / "experiment.yaml"), "--from-tracking"]
    assert run_command(lambda: app(read, standalone_mode=False)) == 0
    said = capsys.readouterr().out
    assert said.count("evaluate/success") == 6, "start and end of two runs, the start of the idle two"
    figures = said.count("evaluate/")
    assert figures >= 12, "with a recovery rate where a mistake was replayed"
    assert "missing" not in said
    with closing(sqlite3.connect(compared.home / "root" / "mlflow.db")) as connection:
        at_the_end = "WHERE step = 1 AND key ="
        connection.execute(f"UPDATE metrics SET value = value + 1 {at_the_end} 'evaluate/success'")
        connection.execute(f"DELETE FROM metrics {at_the_end} 'evaluate/family_mean'")
        connection.commit()
    assert run_command(lambda: app(read, standalone_mode=False)) == 8
    out, err = capsys.readouterr()
    assert out.count("missing") == 2
    assert f"4 of {figures} figures in MLflow are not the artifacts'" in err
