"""What the commands refuse before anything is written, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.client.schemas.objects import State

from flows.cli import app
from pivotopd.artifacts import Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config, load_config
from pivotopd.errors import ConfigError, EngineFault
from pivotopd.exits import run_command
from tests.small_student import small_config


def cli(*arguments: str) -> int:
    return run_command(lambda: app(list(arguments), standalone_mode=False))


def stored(root: Path, student: Path, folder: str) -> RunConfig:
    """Write the configuration of run ``small`` into a folder."""
    config = small_config(root, student)
    (root / folder).mkdir(parents=True)
    (root / folder / "config.yaml").write_text(dump_config(config))
    return config


def written(folder: Path, text: str) -> str:
    file = folder / "experiment.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--iteration", "2"], 3),
        (["environment.games=/no/such/games"], 4),
        (["method=grpo", "student.path=1"], 0),
    ],
)
def test_a_refused_diagnosis_of_a_model_leaves_no_run(
    more: list[str], code: int, student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    got = cli("diagnose", str(student), f"root={root}", *more, *(["--dry-run"] if code == 0 else []))
    assert (got == 0) == (code == 0), capsys.readouterr().err
    if code:
        assert got == code
        assert "mend:" in capsys.readouterr().err
    assert not root.exists()


def test_a_deployed_training_is_refused_as_early_as_the_command(student: Path, tmp_path: Path) -> None:
    from flows.deployed import train

    file, root = tmp_path / "config.yaml", tmp_path / "root"
    file.write_text(dump_config(small_config(root, student)))
    changes = ["method=opd", "larger_teacher.path=/no/such/model"]
    assert cli("train", str(file), *changes) == 3
    refused = train.fn(str(file), changes)
    assert isinstance(refused, State)
    assert refused.is_failed()
    assert "/no/such/model" in str(refused.message)
    assert not root.exists()


def test_a_file_is_no_run(tmp_path: Path, student: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, student, "small")
    for file in (tmp_path / "small" / "config.yaml", tmp_path / "small" / "config.yaml" / "below"):
        for command in (["inspect"], ["runs", "verify"], ["stage", "rollout", "--iteration", "0", "--run"]):
            assert cli(*command, str(file)) == 3
            assert "this is a file, not a run" in capsys.readouterr().err


def test_a_run_under_another_name_is_told(
    tmp_path: Path, student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, student, "renamed")
    assert cli("evaluate", str(tmp_path / "renamed")) == 2
    said = capsys.readouterr().err
    assert "this is run 'small' under another name" in said
    assert "rename the folder to 'small'" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods: 3\n", "methods: a mapping of keys is wanted here"),
        ("methods: {a: {}}\nseeds: []\n", "seeds: must have at least 1 item"),
        ("methods: {a: {}}\nseeds: [x]\n", "seeds.0: a whole number is wanted here"),
        ("methods: {a: {}}\nseeds: [-1]\n", "seeds.0: must be greater than or equal to 0"),
        ("methods: {a: {}}\nseeds: [1, 1]\n", "seeds: a seed is given twice"),
        ("methods: {a: {}}\nreference: b\n", "reference 'b' is neither"),
    ],
)
def test_an_experiment_file_is_explained_in_its_own_words(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("compare", written(tmp_path, f"name: try\nbase: base.yaml\n{text}")) == 2
    said = capsys.readouterr().err
    assert words in said
    for foreign in ("Input should", "Value error", "Tuple", "dictionary", "validation"):
        assert foreign not in said


@pytest.mark.parametrize("other", ["--report-only", "--from-tracking"])
def test_a_comparison_is_listed_or_reported_not_both(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("compare", written(tmp_path, ""), "--dry-run", other) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_report_of_nothing_is_refused(
    tmp_path: Path, student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    (tmp_path / "base.yaml").write_text(dump_config(small_config(root, student)))
    file = written(tmp_path, "name: try\nbase: base.yaml\nseeds: [0]\nmethods: {a: {}}\n")
    assert cli("compare", file, "--report-only") == 3
    assert "none of 1 runs has an evaluation" in capsys.readouterr().err
    assert not root.exists()


@pytest.mark.parametrize("key", ["seed", "warm_start.seed", "evaluation.seed", "diagnosis.seed"])
def test_negative_seeds_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: must be greater than or equal to 0"):
        load_config(None, [f"{key}=-1"])


def test_a_number_of_tokens_that_nothing_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="read with estimator=top_k only"):
        load_config(None, ["method.estimator_tokens=20"])
    assert load_config(None, ["method.estimator_tokens=50"]) == load_config(None)
    kept = load_config(None, ["method.estimator=top_k", "method.estimator_tokens=20"])
    assert kept.method.model_dump()["estimator_tokens"] == 20


def test_a_server_out_of_reach_is_told_before_the_first_stage(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, file = tmp_path / "root", tmp_path / "config.yaml"
    file.write_text(dump_config(small_config(root, student)))
    assert cli("train", str(file), "engine.urls=['http://127.0.0.1:1']") == EngineFault.exit_code
    assert "where: http://127.0.0.1:1" in capsys.readouterr().err
    assert list(list_artifacts(Store(str(root)))) == []
