"""A larger model's scores and rollouts that are cut by depth, stage by stage over stored artifacts."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from pivotopd.artifacts import Artifact
from pivotopd.errors import ArtifactError
from pivotopd.models.base import ScoreRequest
from pivotopd.models.checkpoint import load_policy
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.records import Advantage, Episode, Signal, Turn
from stages.metrics import metrics_of
from stages.rollout import run as play
from stages.runs import open_run, rerun
from stages.work import Job
from tests.small_student import small_config
from tests.stages.conftest import StoredRun


def opened(
    root: Path, student: Path, larger: Path, method: dict[str, object], **changes: object
) -> StoredRun:
    changes |= {"method": method, "larger_teacher__path": str(larger), "iterations": 4}
    open_run(small_config(root, student, **changes))
    return StoredRun(root)


def lengths(rollout: Artifact) -> list[int]:
    return [one.turns for one in rollout.rows(Episode)]


@pytest.fixture(scope="module")
def probing(student: Path, larger: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """Two iterations of TurnOPD: a probe, then rollouts that are cut."""
    method: dict[str, object] = {"name": "turnopd", "warm_up": 0, "probe_every": 8}
    run = opened(tmp_path_factory.mktemp("probing") / "root", student, larger, method)
    for iteration in (0, 1):
        run.run("rollout", iteration, follow=True)
    return run


# ----------------------------------------------------------------------------- scores


def test_scores_are_the_larger_model_s_own(probing: StoredRun, larger: Path) -> None:
    rows = probing.artifact("rollout", 0).rows(Turn)
    update = probing.artifact("update", 0)
    engine = TransformersEngine(load_policy(larger))
    wanted = engine.score([ScoreRequest(row.prompt_ids, row.response_ids) for row in rows])
    signals = update.rows(Signal)
    assert len(signals) == len(rows) > 0
    for signal, values in zip(signals, wanted, strict=True):
        assert signal.teacher_nats is not None
        np.testing.assert_allclose(signal.teacher_nats, values, atol=1e-4)
        assert np.abs(np.subtract(signal.teacher_nats, signal.plain_nats)).max() > 1e-2
    tokens = sum(len(row.response_ids) for row in rows)
    counts = update.manifest.counts
    assert counts["teacher_scored_tokens"] == tokens
    assert counts["scored_tokens"] == 2 * tokens, "student and larger model; the student is its own reference"
    mean = np.mean(np.concatenate([np.subtract(one.plain_nats, one.teacher_nats or ()) for one in signals]))
    assert metrics_of(update)["update/teacher_reverse_kl_nats"] == pytest.approx(mean, rel=1e-4)


def test_the_student_may_be_its_own_larger_model(student: Path, tmp_path: Path) -> None:
    run = opened(tmp_path / "root", student, student, {"name": "sod"}, update__idle_limit=9)
    run.run("rollout", 0, follow=True)
    update = run.artifact("update", 0)
    assert all(one.teacher_nats == one.plain_nats for one in update.rows(Signal))
    tokens = sum(len(row.response_ids) for row in run.artifact("rollout", 0).rows(Turn))
    assert update.manifest.counts["teacher_scored_tokens"] == tokens
    assert update.manifest.counts["scored_tokens"] == 2 * tokens


def test_a_checkpoint_of_another_run_serves(finished: StoredRun, student: Path, tmp_path: Path) -> None:
    folder = finished.checkpoint(1).local_path()
    run = opened(tmp_path / "root", student, folder, {"name": "opd"})
    run.run("rollout", 0, follow=True)
    signals = run.artifact("update", 0).rows(Signal)
    assert all(one.teacher_nats is not None and one.teacher_nats != one.plain_nats for one in signals)


def test_other_methods_score_nothing_by_it(finished: StoredRun) -> None:
    update = finished.artifact("update", 0)
    assert update.manifest.counts["teacher_scored_tokens"] == 0
    assert all(one.teacher_nats is None for one in update.rows(Signal))
    assert "teacher" not in update.manifest.inputs
    assert "update/teacher_reverse_kl_nats" not in metrics_of(update)


# ------------------------------------------------------------------------------ depth


def test_tcod_plays_one_more_turn_every_eta_iterations(student: Path, larger: Path, tmp_path: Path) -> None:
    method: dict[str, object] = {"name": "tcod", "iterations_per_turn": 1, "max_turns": 2}
    run = opened(tmp_path / "root", student, larger, method)
    for iteration, limit in enumerate((1, 2, 2)):
        run.run("rollout", iteration, follow=True)
        rollout = run.artifact("rollout", iteration)
        assert metrics_of(rollout)["rollout/turn_limit"] == limit
        for one in rollout.rows(Episode):
            assert one.turns == limit
            assert (one.termination, one.won) == ("turn_limit", False), "no task is done in two turns"
        advantages = run.artifact("update", iteration).rows(Advantage)
        assert all(np.any(one.total) for one in advantages)


def test_the_environment_s_limit_stays_below_the_method_s(
    student: Path, larger: Path, tmp_path: Path
) -> None:
    run = opened(tmp_path / "root", student, larger, {"name": "tcod"})
    run.run("rollout", 0, "environment.max_turns=2", "method.iterations_per_turn=1")
    first = run.artifact("rollout", 0, "environment.max_turns=2", "method.iterations_per_turn=1")
    assert metrics_of(first)["rollout/turn_limit"] == 1
    overrides = ("environment.max_turns=2", "method=turnopd")
    run.run("rollout", 0, *overrides)
    assert metrics_of(run.artifact("rollout", 0, *overrides))["rollout/turn_limit"] == 2


def by_hand(rollout: Artifact, update: Artifact) -> float:
    """The mean depth that the stored scores of a probe ask for, in plain sums."""
    episodes = {one.episode: one for one in rollout.rows(Episode)}
    gaps: dict[int, list[float]] = defaultdict(list)
    for one in update.rows(Signal):
        assert one.teacher_nats is not None
        lost = [plain - big for plain, big in zip(one.plain_nats, one.teacher_nats, strict=True)]
        gaps[one.turn + 1].append(sum(lost) / len(lost))
    mass = {t: max(sum(found) / len(found), 0.0) * len(found) / len(episodes) for t, found in gaps.items()}
    assert sum(one.won for one in episodes.values()) < 8, "too few successes to count"
    return float(round(sum(t * one for t, one in mass.items()) / sum(mass.values())))


def test_turnopd_cuts_at_what_the_probe_before_has_found(probing: StoredRun) -> None:
    probe, cut = (probing.artifact("rollout", iteration) for iteration in (0, 1))
    assert metrics_of(probe)["rollout/turn_limit"] == max(lengths(probe)) == 10
    asked = by_hand(probe, probing.artifact("update", 0))
    assert 1 <= asked <= 9
    stored = json.loads(probing.artifact("update", 0).log("depth.json"))
    assert stored == {"average_turns": asked, "cap_turns": max(int(asked) + 1, 2)}
    assert metrics_of(probing.artifact("update", 0))["update/depth_cap_turns"] == stored["cap_turns"]
    assert metrics_of(cut)["rollout/turn_limit"] == stored["cap_turns"]
    assert max(lengths(cut)) <= stored["cap_turns"]
    assert json.loads(probing.artifact("update", 1).log("depth.json")) == stored, "only a probe moves it"
    for artifact in (cut, probing.artifact("update", 1)):
        assert artifact.manifest.inputs["depth"] == probing.artifact("update", 0).digest


def test_a_probe_plays_on_beyond_the_cap_and_moves_the_average(probing: StoredRun, tmp_path: Path) -> None:
    shutil.copytree(probing.root, tmp_path / "root")
    run, again = StoredRun(tmp_path / "root"), ("method.probe_every=1", "method.ema=0.4")
    # iteration 1 becomes a probe, on the stored iteration 0
    run.run("rollout", 1, *again, follow=True)
    rollout = run.artifact("rollout", 1, *again)
    before = json.loads(run.artifact("update", 0).log("depth.json"))
    assert max(lengths(rollout)) > before["cap_turns"]
    work, plan = rerun(run.uri, "rollout", 1, list(again))
    update = work.find(plan.job("update", 1))
    assert update is not None
    for one in update.rows(Advantage):
        assert np.any(one.total) == (one.turn < before["cap_turns"])
    after = json.loads(update.log("depth.json"))
    wanted = 0.6 * before["average_turns"] + 0.4 * by_hand(rollout, update)
    assert after["average_turns"] == pytest.approx(wanted)
    assert after["cap_turns"] == round(wanted) + 1


def test_the_cap_is_read_from_the_stored_update(student: Path, larger: Path, tmp_path: Path) -> None:
    """Nothing but the input says how deep: a hand-made update with a cap of 3 cuts at 3."""
    run = opened(tmp_path / "root", student, larger, {"name": "turnopd", "warm_up": 0})
    work, plan = rerun(run.uri, "rollout", 1, [])
    made = plan.job("update", 0)
    checkpoint = Job(
        "checkpoint", 0, work.layout.checkpoints, made.digest, made.code, made.reads, made.inputs
    )
    with work.begin(checkpoint) as writer:
        with writer.local_folder() as folder:
            shutil.copytree(student, folder, dirs_exist_ok=True)
        writer.publish(counts={})
    with work.begin(made) as writer:
        writer.write_log("depth.json", '{"average_turns": 2.2, "cap_turns": 3}')
        writer.publish(counts={})
    run.run("rollout", 1)
    rollout = run.artifact("rollout", 1)
    assert metrics_of(rollout)["rollout/turn_limit"] == 3 == max(lengths(rollout))
    assert {one.termination for one in rollout.rows(Episode)} <= {"turn_limit", "won"}


def test_an_update_without_a_stored_depth_is_an_input_error(finished: StoredRun, larger: Path) -> None:
    overrides = ["method=turnopd", f"larger_teacher.path={larger}"]
    work, plan = rerun(finished.uri, "rollout", 1, overrides)
    assert plan.job("rollout", 1).inputs["depth"].digest == finished.artifact("update", 0).digest
    with pytest.raises(ArtifactError, match=r"no log 'depth\.json'"):
        play(work, plan.job("rollout", 1))
