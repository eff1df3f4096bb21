"""An experiment file says arms and seeds, and every mistake in it is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.comparison.experiment import Experiment, cells_of, load_experiment
from pivotopd.errors import ConfigError

BASE = "iterations: 3\nname: mine\nroot: runs\n"


def written(folder: Path, text: str) -> Path:
    (folder / "base.yaml").write_text(BASE)
    file = folder / "experiment.yaml"
    file.write_text("name: try\nbase: base.yaml\n" + text)
    return file


def loaded(folder: Path, text: str) -> Experiment:
    return load_experiment(written(folder, text))


def test_every_arm_has_every_seed_on_the_base(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
seeds: [3, 5]
overrides: {iterations: 4, environment.generated: {train: 8}}
methods:
  pivotopd: {}
  preventive_only: {recovery.depth: 0, method.prevention_weight: 0.1}
  listed: [recovery.depth=1, method.recovery_weight=1e-1]
  grpo: {method: grpo}
""",
    )
    cells = cells_of(load_experiment(file), file)
    assert [cell.label for cell in cells] == [
        f"{arm}-seed{seed}" for arm in ("pivotopd", "preventive_only", "listed", "grpo") for seed in (3, 5)
    ]
    assert {cell.config.iterations for cell in cells} == {4}
    assert {cell.config.environment.generated.train for cell in cells} == {8}
    assert {cell.config.name for cell in cells} == {None}, "runs name themselves"
    by_label = {cell.label: cell.config for cell in cells}
    assert by_label["pivotopd-seed5"].seed == 5
    assert by_label["preventive_only-seed3"].recovery.depth == 0
    assert by_label["preventive_only-seed3"].method.model_dump()["prevention_weight"] == 0.1
    assert by_label["listed-seed3"].method.model_dump()["recovery_weight"] == 0.1
    assert by_label["grpo-seed3"].method.name == "grpo"
    assert by_label["grpo-seed3"].recovery.depth == by_label["pivotopd-seed3"].recovery.depth


def test_the_base_lies_beside_the_file_wherever_it_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "methods: {a: {}}")
    monkeypatch.chdir("/")
    assert cells_of(load_experiment(file), file)[0].config.iterations == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods: {a: {}}\nrefrence: a", "unknown key 'refrence'; did you mean 'reference'"),
        ("methods: {a: {}}\nthresholds: {recovry: 0.5}", "did you mean 'recovery'"),
        ("methods: {}", "methods"),
        ("seeds: [0]", "methods has no default and is not given"),
        ("methods: {a: {}}\nseeds: []", "seeds"),
        ("methods: {a: {}}\nseeds: [1, 1]", "a seed is given twice"),
        ("methods: {a: {}}\nreference: b", "reference 'b' is neither 'start' nor one of the arms"),
        ("methods: {start: {}}", "cannot be an arm's label"),
        ("methods: {a/b: {}}", "methods"),
        ("methods: {a: {}}\nthresholds: {recovery: 2}", "thresholds.recovery"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert said in caught.value.what
    assert str(caught.value.where).endswith("experiment.yaml")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_name_becomes_a_folder(tmp_path: Path, name: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(f"name: '{name}'\nbase: base.yaml\nmethods: {{a: {{}}}}\n")
    with pytest.raises(ConfigError, match="name"):
        load_experiment(file)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("methods: {a: {seed: 1}}", "seed"),
        ("methods: {a: [name=x]}", "name"),
        ("methods: {a: {root: elsewhere}}", "root"),
        ("methods: {a: {tracking.enabled: false}}", "tracking.enabled"),
        ("methods: {a: {}}\noverrides: {seed: 1}", "seed"),
    ],
)
def test_an_arm_does_not_set_what_all_runs_share(tmp_path: Path, text: str, key: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"'{key}' cannot be set here"):
        cells_of(load_experiment(file), file)


def test_a_wrong_setting_names_its_arm(tmp_path: Path) -> None:
    file = written(tmp_path, "methods: {fine: {}, wrong: {recovery.dept: 1}}")
    with pytest.raises(ConfigError, match="did you mean 'depth'") as caught:
        cells_of(load_experiment(file), file)
    assert "arm 'wrong'" in str(caught.value.where)


@pytest.mark.parametrize(
    ("name", "runs"), [("demo", 12), ("laptop", 21), ("laptop-tuning", 28), ("laptop-no-gap", 4)]
)
def test_the_experiments_in_configs_are_what_the_pages_say(name: str, runs: int) -> None:
    file = Path(__file__).resolve().parents[2] / "configs" / f"compare-{name}.yaml"
    cells = cells_of(load_experiment(file), file)
    assert len(cells) == runs
    assert {cell.config.environment.prompt for cell in cells} == {"compact"}
    assert len({(cell.seed, cell.config.model_dump_json()) for cell in cells}) == runs, "no twins"
