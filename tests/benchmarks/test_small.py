"""Every benchmark at a tiny size: it runs, its sides are equal, its counts exact. No time is judged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth, lockstep, loss_memory, orchestration, overhead, restore, update
from benchmarks.beside import trl_folder
from benchmarks.iteration import CACHE, Bench, Outcome, Shape
from benchmarks.ratios import Cost
from benchmarks.result import Measure, Skipped
from pivotopd.ledger import Counts

TINY = Shape(tasks=2, group_size=2, max_turns=6, chains=2)


def by_name(found: Sequence[Measure | Skipped]) -> dict[str, Measure]:
    assert all(isinstance(one, Measure) for one in found), found
    named = {one.name: one for one in found if isinstance(one, Measure)}
    for one in named.values():
        assert one.low <= one.value <= one.high
        assert np.isfinite([one.value, one.low, one.high]).all()
    return named


@pytest.fixture
def bench(student: Path) -> Bench:
    return Bench(student)


def test_iterations_repeat_and_depth_adds_exactly_its_turns(bench: Bench) -> None:
    try:
        grpo, one, two, again = (
            bench.run(replace(TINY, method="grpo", depth=0)),
            bench.run(replace(TINY, depth=1)),
            bench.run(replace(TINY, depth=2)),
            bench.run(replace(TINY, depth=2, replay=True)),
        )
    finally:
        bench.close()
    assert grpo.counts.scored_rows == 2 * grpo.own["update/rows"]  # by the policy and by the reference
    assert grpo.content["rollout"] == one.content["rollout"] == two.content["rollout"]
    assert two.content["label"] == one.content["label"]
    assert again.content["label"] == two.content["label"]
    assert one.own["recover/teacher_queries"] <= TINY.chains
    assert one.counts.restores == one.counts.replays == 0  # K = 1 needs no environment
    assert two.counts.restores == again.counts.replays
    assert again.counts.env_resets - two.counts.env_resets == again.counts.replays
    assert one.counts.engine_starts == one.counts.learner_starts == 0
    assert not bench.roots.exists()


def test_a_teacher_is_late_and_says_the_same(bench: Bench) -> None:
    try:
        soon, late = bench.run(TINY), bench.run(replace(TINY, latency_s=0.01))
        streamed = bench.run(replace(TINY, latency_s=0.01, streaming="exact"))
        lesson = bench.run(replace(TINY, lessons=True))
    finally:
        bench.close()
    assert soon.content == late.content == streamed.content
    assert late.counts.scored_tokens == streamed.counts.scored_tokens
    assert lesson.own["label/lessons"] == TINY.episodes
    assert lesson.counts.scored_tokens > soon.counts.scored_tokens


def test_a_comparison_of_different_episodes_is_refused() -> None:
    def outcome(rollout: str) -> Outcome:
        return Outcome(Cost(1, 1.0, 1.0), Counts(), {}, {}, {"rollout": rollout, "label": "same"})

    overhead.check_equal([{"grpo": outcome("a"), "k1": outcome("a")}])
    with pytest.raises(SystemExit, match="different episodes"):
        overhead.check_equal([{"grpo": outcome("a"), "k1": outcome("b")}])


@pytest.mark.slow
def test_overhead(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "student_folder", lambda: student)
    found = by_name([*overhead.measure(quick=True), *overhead.measure_latency(quick=True)])
    assert {"overhead/k1", "overhead/k2", "overhead/k4", "overhead/k1/latency"} <= found.keys()
    assert found["overhead/k1/latency"].clock == "wall"
    assert found["overhead/k1"].counts["teacher_latency_s"] == 0
    assert found["overhead/k4"].gate == 40
    for one in found.values():
        assert one.counts["engine_starts"] == 0


@pytest.mark.reference
@pytest.mark.slow
def test_overhead_with_the_stock_engine(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textworld")
    monkeypatch.setattr(overhead, "student_folder", lambda: student)
    found = by_name(overhead.measure_stock(quick=True))
    assert found["overhead/stock/k1"].counts["replays"] == 0
    assert found["overhead/stock/k2"].counts["replays"] == found["overhead/stock/k3"].counts["replays"]
    assert found["overhead/stock/k2"].counts["restores"] == 0


@pytest.mark.reference
@pytest.mark.slow
def test_restore() -> None:
    pytest.importorskip("textworld")
    found = by_name(restore.measure(quick=True))
    assert found["restore/stock"].counts["equal_answers"] == 15  # a reset, 12 steps, two restored states


def test_lockstep_plays_the_same_turns(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "student_folder", lambda *_, **__: student)
    monkeypatch.setattr(lockstep, "wordy_student_folder", lambda: student)
    found = by_name(lockstep.measure(quick=True))
    assert found.keys() == {f"rollout/lockstep/{name}" for name in ("ragged", "early", "late")}
    assert {one.name for one in found.values() if one.gate is not None} == {"rollout/lockstep/ragged"}
    for one in found.values():
        count = {name: value for name, value in one.counts.items() if not isinstance(value, str)}
        assert count["equal_turns"] == count["turns"] == count["responses"]
        assert count["lockstep_responses"] == count["slots"] * count["lockstep_rounds"]
        assert count["steps_at_least"] <= count["passes"]
        assert count["steps_at_least"] <= count["lockstep_steps"] <= count["lockstep_passes"]


def test_lockstep_says_where_vllm_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (one,) = lockstep.measure_vllm()
    assert isinstance(one, Skipped)
    assert one.name == "rollout/lockstep/vllm"
    assert "not installed" in one.reason


@pytest.mark.slow
def test_losses_are_equal_at_every_size() -> None:
    found = by_name(loss_memory.measure(quick=True))
    counts = found["loss/memory"].counts
    assert counts["our_loss"] == pytest.approx(counts["naive_loss"], abs=1e-6)
    assert counts["our_gradient_norm"] == pytest.approx(counts["naive_gradient_norm"], rel=1e-4)


def test_different_losses_are_refused() -> None:
    one = loss_memory.Peak(1.0, 0.5, 2.0, 0.1)
    loss_memory.check_equal(one, one)
    with pytest.raises(SystemExit, match="differ"):
        loss_memory.check_equal(one, replace(one, loss=0.6))
    with pytest.raises(SystemExit, match="differ"):
        update.check_losses({"ours": 0.5, "trl": 0.5002})


@pytest.mark.slow
def test_update_has_the_loss_of_trl() -> None:
    if not any(CACHE.glob("site-*/trl")):
        reason = "TRL is not there: `python -m benchmarks --only update` installs it"
        if os.environ.get("PIVOTOPD_REQUIRE_TRL", "0") not in ("", "0"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    assert trl_folder(CACHE) is not None
    found = by_name(update.measure(quick=True))
    assert abs(float(found["update/trl"].counts["loss_gap"])) <= update.TOLERANCE
    assert int(found["update/trl"].counts["our_positions"]) == int(found["update/trl"].counts["tokens"])


@pytest.mark.slow
def test_growth_is_exact(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "student_folder", lambda: student)
    found = by_name(growth.measure(quick=True))
    assert found["growth/cap"].value == 1
    assert found["growth/rollouts/env_steps"].value <= 1.5


@pytest.mark.slow
def test_orchestration_counts_engines(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestration, "student_folder", lambda: student)
    found = by_name(orchestration.measure(quick=True))
    starts = found["orchestration/engine_starts"]
    assert starts.counts["iterations"] == 2
    assert starts.value == 0, "the first iteration's engine takes each new policy in place"
    assert 0 < found["orchestration/share"].value < 100
