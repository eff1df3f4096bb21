"""PivotOPD's ablations as reruns of a finished run: what the recover and update stages do otherwise."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest

from pivotopd.records import Advantage, Chain, Label, Signal, Turn, Update
from stages.runs import rerun
from tests.stages.conftest import StoredRun


@pytest.fixture(scope="module")
def stored(finished: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A copy: these tests write beside what other tests count."""
    folder = tmp_path_factory.mktemp("ablations") / "root"
    shutil.copytree(finished.root, folder)
    return StoredRun(folder)


Redone = tuple[list[Turn], list[Chain], list[Signal], list[Advantage]]


def redone(stored: StoredRun, *overrides: str) -> Redone:
    """Run recover and update of iteration 0 again with other settings; return what they wrote."""
    stored.run("recover", 0, *overrides, follow=True)
    work, plan = rerun(stored.uri, "recover", 0, list(overrides))
    recover, update = work.find(plan.job("recover", 0)), work.find(plan.job("update", 0))
    assert recover is not None
    assert update is not None
    return recover.rows(Turn), recover.rows(Chain), update.rows(Signal), update.rows(Advantage)


def pivots(stored: StoredRun) -> Counter[str]:
    return Counter(one.episode for one in stored.artifact("label", 0).rows(Label) if one.pivotal)


def hinted_rollout(signals: list[Signal]) -> list[tuple[str, int]]:
    return [
        (one.episode, one.turn) for one in signals if one.source == "rollout" and one.hinted_nats is not None
    ]


def test_random_turns_move_recoveries_and_prevention_alike(stored: StoredRun) -> None:
    rows, chains, signals, _ = redone(stored, "method.pivot_turns=random")
    _, usual, _, _ = redone(stored)
    moved = {(one.episode, one.pivot_turn) for one in chains}
    assert Counter(episode for episode, _ in moved) == pivots(stored)
    assert moved == set(hinted_rollout(signals))
    assert moved != {(one.episode, one.pivot_turn) for one in usual}
    assert {(row.episode, row.pivot_turn) for row in rows} <= moved


def test_reverse_recovery_scores_recorded_responses(stored: StoredRun) -> None:
    rows, _, signals, advantages = redone(stored, "method.recovery_kl=reverse")
    played = {(row.episode, row.turn): row for row in stored.artifact("rollout", 0).rows(Turn)}
    assert rows
    for row in rows:
        recorded = played[row.episode, row.turn]
        assert row.response_ids == recorded.response_ids
        assert row.prompt_ids == recorded.prompt_ids != row.hinted_prompt_ids
    plain = {(one.episode, one.turn): one for one in signals if one.source == "rollout"}
    for signal, one in zip(signals, advantages, strict=True):
        if signal.source == "recovery":
            twin = plain[signal.episode, signal.turn]
            np.testing.assert_allclose(signal.plain_nats, twin.plain_nats, atol=1e-4)
            gap = np.subtract(signal.hinted_nats or (), signal.plain_nats)
            np.testing.assert_allclose(one.total, np.clip(gap, -5, 5), atol=1e-5)


def test_reflection_hides_every_action(stored: StoredRun) -> None:
    rows, _, signals, _ = redone(stored, "method.hint=reflection")
    usual = {(row.episode, row.turn): row for row in redone(stored)[0]}
    assert set(hinted_rollout(signals)) == {
        (one.episode, one.turn) for one in stored.artifact("label", 0).rows(Label) if one.pivotal
    }
    for row in rows:
        assert row.hinted_prompt_ids is not None
        added = len(row.hinted_prompt_ids) - len(row.prompt_ids)
        named = usual.get((row.episode, row.turn))
        if named is not None:
            assert named.hinted_prompt_ids is not None
            assert 0 < added < len(named.hinted_prompt_ids) - len(named.prompt_ids)


def test_likelihood_of_recoveries_trains_beside_ppo(stored: StoredRun) -> None:
    _, _, _, advantages = redone(stored, "method.recovery_objective=nll")
    recovery = [one for one in advantages if one.source == "recovery"]
    assert recovery
    assert not any(any(one.total) for one in recovery)
    work, plan = rerun(stored.uri, "recover", 0, ["method.recovery_objective=nll"])
    update = work.find(plan.job("update", 0))
    assert update is not None
    steps = update.rows(Update)
    assert all(step.auxiliary_loss > 0 for step in steps if step.recovery_rows)
    for step in steps:
        assert step.loss == pytest.approx(step.policy_loss + 0.01 * step.kl_nats + step.auxiliary_loss)


def test_preventive_and_recovery_only_are_settings(stored: StoredRun) -> None:
    only = ("method.prevention_weight=0", "method.lesson_weight=0")
    _, _, signals, advantages = redone(stored, *only)
    assert hinted_rollout(signals) == []
    assert any(any(one.total) for one in advantages if one.source == "recovery")
    preventive = ("recovery.depth=0", "method.prevention_weight=0.1")
    stored.run("update", 0, *preventive)
    update = stored.artifact("update", 0, *preventive)
    assert all(one.source == "rollout" for one in update.rows(Signal))
    assert any(one.prevention and any(one.prevention) for one in update.rows(Advantage))


def test_ablations_of_recovery_leave_rollout_and_label(stored: StoredRun) -> None:
    for setting in ("recovery_kl=reverse", "pivot_turns=random", "hint=reflection"):
        override = f"method.{setting}"
        for stage in ("rollout", "label"):
            assert stored.artifact(stage, 0, override).digest == stored.artifact(stage, 0).digest
