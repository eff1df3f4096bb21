"""The list of methods, the refusal of those that lack a signal, and real runs of those that do not."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.methods_cli import _WORDS, needs_in_words
from flows.prefect_defaults import set_prefect_defaults
from pivotopd.artifacts import Artifact, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError
from pivotopd.exits import run_command
from pivotopd.methods import sections
from pivotopd.methods.base import Needs
from pivotopd.methods.registry import ENTRIES, make_method
from pivotopd.records import Advantage, Distribution, Episode, Signal, Turn, Update
from stages.runner import perform
from stages.runs import open_run
from tests.conftest import ROOT
from tests.small_student import small_config, small_student

SKILLED = ("opsd", "rlsd", "sdar", "agentopsd", "skill_sd")
BY_LARGER = ("opd", "turnopd", "tcod", "sod")
READY = ("pivotopd", "grpo", "pivotrl", "stepopsd", *SKILLED, "skill_grpo", "opid", *BY_LARGER)
AUXILIARY = ("sdar", "skill_sd")
NAMES = [entry.name for entry in ENTRIES.values()]


def say(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_section_of_the_configuration_has_a_method_of_its_own_name() -> None:
    assert set(ENTRIES) == set(get_args(sections.Settings))
    assert len(set(NAMES)) == len(NAMES) == 15
    for section, entry in ENTRIES.items():
        assert section().name == entry.name
        assert type(make_method(section(), 2)) is entry.kind


def test_every_need_has_words() -> None:
    assert set(_WORDS) == {item.name for item in dataclasses.fields(Needs)}


def test_methods_lists_all_with_their_needs() -> None:
    rows = {line.split("│")[1].strip(): line for line in say("methods").splitlines() if line.startswith("│")}
    for entry in ENTRIES.values():
        first = needs_in_words(make_method(entry.section(), 2).needs).split(",")[0]
        assert rows[entry.name].split("│")[2].strip().startswith(first)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=NAMES)
def test_a_method_s_page_has_formula_source_and_every_setting(entry: object) -> None:
    assert isinstance(entry, type(next(iter(ENTRIES.values()))))
    shown = say("methods", entry.name)
    assert "A_l " in shown
    assert "Source:" in shown
    for key, info in entry.section.model_fields.items():
        if key != "name":
            assert f"method.{key}={info.default}" in shown


def test_an_unknown_method_is_a_mistake_with_the_nearest_name() -> None:
    result = CliRunner().invoke(app, ["methods", "stepopd"])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.mend == "did you mean 'stepopsd'?"


def test_the_manual_has_a_section_and_every_setting_of_each_method() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for entry in ENTRIES.values():
        _, found, rest = text.partition(f"\n### `{entry.name}`")
        assert found, entry.name
        own = rest.split("\n### ")[0].split("\n## ")[0]
        for key in entry.section.model_fields:
            named = re.search(rf"[`.]{key}\b", own)
            assert key in ("name", "normalise_std") or named, (entry.name, key)


def type_of(name: str) -> type[sections.Settings]:
    return next(section for section, entry in ENTRIES.items() if entry.name == name)


@pytest.mark.parametrize("name", BY_LARGER)
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_larger_model_that_does_not_fit_is_refused_before_anything_is_written(
    name: str,
    options: list[str],
    student: Path,
    larger: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = shutil.copytree(larger, tmp_path / "other")
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    base = ["train", f"method={name}", f"student={{kind: pretrained, path: {student}}}"]
    base += [f"root={tmp_path / 'runs'}", *options]
    assert run_command(lambda: app(base, standalone_mode=False)) == 2
    assert f"method {name} needs a larger model" in capsys.readouterr().err
    arguments = [*base, f"larger_teacher.path={other}"]
    assert run_command(lambda: app(arguments, standalone_mode=False)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tokenizer is not the student's" in shown.err
    assert str(other) in shown.err
    assert str(student) in shown.err
    assert "mend:" in shown.err
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------------- real runs


def trained(config: RunConfig) -> list[Artifact]:
    """Do all jobs of a training, in this process and without a server: what differs here is the method."""
    set_prefect_defaults()
    from flows.train import jobs_of

    work, plan = open_run(config)
    with closing(work):
        for job in jobs_of(plan):
            assert not perform(work, job).cached
    return list(list_artifacts(work.store))


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("name", READY)
def test_a_ready_method_trains_for_two_iterations(
    name: str, student: Path, larger: Path, tmp_path: Path
) -> None:
    if name == "skill_grpo":  # a student that has never seen skills cannot play on its prompts
        student = small_student(skilled_share=0.4)
    by_larger = name in BY_LARGER
    # long and many enough that some episodes of one task are won and others not
    config = small_config(
        tmp_path / "root",
        student,
        method={"name": name, **({"warm_up": 0} if name == "turnopd" else {})},
        larger_teacher__path=str(larger) if by_larger else None,
        environment__max_turns=16,
        rollout__tasks=4,
        rollout__group_size=12,
        update__learning_rate=1e-5,
        update__mini_batch_rows=256,
    )
    found = trained(config)
    updates = sorted((one for one in found if one.manifest.stage == "update"), key=iteration_of)
    assert [iteration_of(one) for one in updates] == [0, 1]
    assert len({one.manifest.notes["weights"] for one in updates}) == 2
    for update in updates:
        assert update.manifest.counts["signal_rows"] > 0
        steps = [step for step in update.rows(Update) if not step.skipped]
        assert all((step.auxiliary_loss != 0.0) == (name in AUXILIARY) for step in steps)
    signals = [signal for update in updates for signal in update.rows(Signal)]
    advantages = [one for update in updates for one in update.rows(Advantage)]
    assert any(signal.peer_nats is not None for signal in signals) == (name == "stepopsd")
    assert any(signal.skill_nats is not None for signal in signals) == (name in (*SKILLED, "opid"))
    banks = sum(one.manifest.stage == "skills" for one in found)
    assert banks == (name in SKILLED or name == "skill_grpo"), "one a run"
    assert any(signal.action_mask is not None for signal in signals) == (name == "stepopsd")
    assert all((signal.teacher_nats is not None) == by_larger for signal in signals)
    assert all((update.manifest.counts["teacher_scored_tokens"] > 0) == by_larger for update in updates)
    assert all(("teacher" in update.manifest.inputs) == by_larger for update in updates)
    if name in ("tcod", "turnopd"):
        check_depth(name, found, updates)
    assert any(one.manifest.stage == "recover" for one in found) == (name == "pivotopd")
    if name == "stepopsd":
        check_actions(found, signals, advantages)


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(
    ("name", "estimator", "width"),
    [("pivotopd", "top_k", 20), ("pivotopd", "full", 899), ("opsd", "full", 899)],
)
def test_the_other_estimators_train_for_two_iterations(
    name: str, estimator: str, width: int, student: Path, tmp_path: Path
) -> None:
    method = {"name": name, "estimator": estimator}
    if estimator == "top_k":
        method |= {"estimator_tokens": width}
    config = small_config(tmp_path / "root", student, method=method, update__learning_rate=1e-5)
    found = trained(config)
    updates = sorted((one for one in found if one.manifest.stage == "update"), key=iteration_of)
    assert len({one.manifest.notes["weights"] for one in updates}) == 2
    for update in updates:
        stored = update.rows(Distribution)
        signals = update.rows(Signal)
        assert len(stored) == sum(
            nats is not None for one in signals for nats in (one.hinted_nats, one.lesson_nats, one.skill_nats)
        )
        assert {one.text for one in stored} == {"hint" if name == "pivotopd" else "skill"}
        assert {one.width for one in stored} == {width}
        mass = json.loads(update.log("metrics.json"))["update/target_mass_mean"]
        assert 0.5 < mass < 0.999999 if estimator == "top_k" else mass == pytest.approx(1.0, abs=1e-5)
        assert update.manifest.counts["signal_rows"] >= len(stored)
        assert all(step.auxiliary_loss > 0.0 for step in update.rows(Update) if not step.skipped)
        parts = [one.total for one in update.rows(Advantage) if one.source == "recovery"]
        assert not any(any(part) for part in parts), "recoveries train by the divergence alone"
        assert bool(parts) == (name == "pivotopd")


@pytest.mark.slow(seconds=10)
def test_tcod_backwards_trains_on_what_the_student_played(
    student: Path, larger: Path, tmp_path: Path
) -> None:
    config = small_config(
        tmp_path / "root",
        student,
        method={"name": "tcod", "direction": "b2f", "iterations_per_turn": 1},
        larger_teacher__path=str(larger),
    )
    found = trained(config)
    rollouts = sorted((one for one in found if one.manifest.stage == "rollout"), key=iteration_of)
    for rollout in rollouts:
        rows, played = rollout.rows(Turn), rollout.rows(Episode)
        counts = rollout.manifest.counts
        first = [min(row.turn for row in rows if row.episode == episode.episode) for episode in played]
        assert counts["expert_turns"] == sum(first) > 0
        assert counts["expert_unsolved"] == 0
        assert len(rows) == sum(episode.turns for episode in played)
        # the expert's ways are played once a task to find them, and once an episode to stand there
        begun = sum(bool(turn) for turn in first)
        assert counts["replays"] == begun
        assert counts["env_steps"] - len(rows) - sum(first) >= max(first)
        assert counts["env_resets"] == len(played) + len({episode.task for episode in played})
    updates = [one for one in found if one.manifest.stage == "update"]
    assert len({one.manifest.notes["weights"] for one in updates}) == 2
    for update in updates:
        assert all(one.teacher_nats is not None for one in update.rows(Signal))
        assert all(any(one.total) for one in update.rows(Advantage)), "every row trains, however late it is"


def iteration_of(artifact: Artifact) -> int:
    assert artifact.manifest.iteration is not None
    return artifact.manifest.iteration


def check_depth(name: str, found: list[Artifact], updates: list[Artifact]) -> None:
    """TCOD plays one turn in both iterations; TurnOPD's second rollout ends at the cap of its first."""
    rollouts = sorted((one for one in found if one.manifest.stage == "rollout"), key=iteration_of)
    deepest = [max(episode.turns for episode in one.rows(Episode)) for one in rollouts]
    if name == "tcod":
        assert deepest == [1, 1]
        return
    cap = json.loads(updates[0].log("depth.json"))["cap_turns"]
    assert deepest == [16, min(16, cap)]
    assert 2 <= cap < 16


def check_actions(found: list[Artifact], signals: list[Signal], advantages: list[Advantage]) -> None:
    """Some action is reshaped, tokens outside keep the outcome, and each step keeps its budget."""
    rollouts = (one for one in found if one.manifest.stage == "rollout")
    rows = {(row.episode, row.turn): row for one in rollouts for row in one.rows(Turn)}
    reshaped = 0
    for signal, one in zip(signals, advantages, strict=True):
        inside = [value for value, kept in zip(one.total, signal.action_mask or (), strict=True) if kept]
        outside = [value for value, kept in zip(one.total, signal.action_mask or (), strict=True) if not kept]
        assert outside == pytest.approx([one.outcome] * len(outside))
        assert bool(inside) == rows[one.episode, one.turn].committed
        if inside:
            assert sum(inside) / len(inside) == pytest.approx(one.outcome, abs=1e-5)
        reshaped += len(set(inside)) > 1
    assert reshaped > 0
