"""Interventions, agreement and probabilities as stages of a real small run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable

import pytest

from pivotopd.artifacts import Artifact
from pivotopd.diagnosis.figures import Part
from pivotopd.diagnosis.interventions import interventions_of
from pivotopd.diagnosis.probabilities import share_of
from pivotopd.records_diagnosis import EpisodeReading
from pivotopd.records_probes import ActionProbability, AgreementSample, Intervention
from stages.diagnosis_plan import DiagnosisPlan
from stages.figures import part_of
from stages.runs import rerun
from tests.stages.conftest import StoredRun

SETTINGS = (
    "diagnosis.split=train", "diagnosis.tasks=4", "diagnosis.samples=4", "diagnosis.temperature=1",
    "diagnosis.repeats=2", "diagnosis.forced_after=[1,2]", "diagnosis.probability_samples=6",
    "diagnosis.agreement_samples=2", "diagnosis.draws=200",
)  # fmt: skip


def made(run: StoredRun, stage: str, iteration: int = 0, *more: str) -> Artifact:
    """Do a stage and return its artifact."""
    run.run(stage, iteration, *SETTINGS, *more)
    work, plan = rerun(run.uri, stage, iteration, [*SETTINGS, *more])
    found = work.find(DiagnosisPlan(plan).job(stage, iteration))
    assert found is not None
    return found


def values(part: Part) -> dict[str, float | None]:
    return {one.key.partition("/")[2]: one.value for one in part.figures}


@pytest.fixture(scope="module")
def diagnosed(finished: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A copy of the run, with the panel and mistakes of its start policy and the panel of its last one."""
    root = tmp_path_factory.mktemp("probes") / "root"
    shutil.copytree(finished.root, root)
    run = StoredRun(root)
    for stage, iteration in (("diagnose", 0), ("mistakes", 0), ("diagnose", 2)):
        made(run, stage, iteration)
    return run


def failures(run: StoredRun, iteration: int = 0) -> list[EpisodeReading]:
    rows = made(run, "diagnose", iteration).rows(EpisodeReading)
    return [one for one in rows if one.kind == "after_pivot"]


def test_every_failure_is_replayed_under_every_intervention(diagnosed: StoredRun) -> None:
    lost = failures(diagnosed)
    assert len(lost) >= 4
    artifact = made(diagnosed, "intervene")
    rows = list(artifact.rows(Intervention))
    counts = Counter((row.episode, row.intervention) for row in rows)
    assert set(counts.values()) == {2}
    names = interventions_of((1, 2))
    for name in names:
        episodes = {episode for episode, kind in counts if kind == name}
        assert episodes <= {one.episode for one in lost}
        if name != "other_turn":
            assert episodes == {one.episode for one in lost}
    assert {row.error for row in rows} == {None}
    assert all(row.turns <= 10 for row in rows)
    part = part_of(artifact)
    for name in names:
        shares = [
            sum(row.won for row in rows if (row.episode, row.intervention) == (episode, name)) / 2
            for episode, kind in counts
            if kind == name
        ]
        assert values(part)[name] == pytest.approx(sum(shares) / len(shares))
    assert artifact.manifest.counts["trials"] == len(rows)
    assert artifact.manifest.counts["rounds"] < len(rows)  # many a batch


def test_of_too_many_failures_some_are_taken_at_equal_steps(diagnosed: StoredRun) -> None:
    artifact = made(diagnosed, "intervene", 0, "diagnosis.most_mistakes=2", "diagnosis.repeats=1")
    count = len(failures(diagnosed))
    assert len({row.episode for row in artifact.rows(Intervention)}) == 2
    assert any(f"2 of {count} failed episodes" in note for note in part_of(artifact).notes)


def test_the_start_policy_and_a_trained_one_are_asked_in_the_same_contexts(diagnosed: StoredRun) -> None:
    first, later = (list(made(diagnosed, "probabilities", n).rows(ActionProbability)) for n in (0, 2))
    assert [(row.episode, row.turn, row.mistake, row.oracle_action) for row in first] == [
        (row.episode, row.turn, row.mistake, row.oracle_action) for row in later
    ]
    assert {row.policy for row in first}.isdisjoint(row.policy for row in later)
    assert {row.samples for row in first} == {6}
    assert all(row.oracle_nats is not None and row.oracle_nats < 0 for row in first)
    assert all(row.mistake_nats is not None and row.mistake_nats < 0 for row in first)
    before, after = (part_of(made(diagnosed, "probabilities", n)) for n in (0, 2))
    share = values(before)["mistake/sampled"]
    assert share == pytest.approx(sum(share_of(row, "mistake") for row in first) / len(first))
    assert share is not None
    assert "mistake/change" not in values(before)
    change = values(after)["mistake/change"]
    assert change == pytest.approx(sum(share_of(row, "mistake") for row in later) / len(later) - share)


def test_the_oracle_as_teacher_reads_each_failure_once(diagnosed: StoredRun) -> None:
    artifact = made(diagnosed, "agreement", 0, 'teacher={"kind": "oracle", "informed": false}')
    rows = list(artifact.rows(AgreementSample))
    assert [row.episode for row in rows] == sorted(one.episode for one in failures(diagnosed))
    assert all(row.correct and row.sample == 0 for row in rows)
    part = part_of(artifact)
    assert values(part)["within_one_turn"] == 1.0
    assert any("a check and no finding" in note for note in part.notes)


def test_the_student_as_teacher_reads_each_failure_several_times(diagnosed: StoredRun) -> None:
    teacher = {"kind": "self", "reply_tokens": 8, "prompt_tokens": 8000}
    artifact = made(diagnosed, "agreement", 2, f"teacher={json.dumps(teacher)}")
    rows = list(artifact.rows(AgreementSample))
    assert Counter(row.episode for row in rows) == {one.episode: 2 for one in failures(diagnosed, 2)}
    # The small student cannot write such a reply, so every reading is wrong, and says why.
    assert all(row.unread and not row.correct for row in rows)
    assert values(part_of(artifact))["within_one_turn"] == 0.0
    assert any("could not be had or parsed" in note for note in part_of(artifact).notes)


def test_a_stage_is_done_once_and_says_the_same_again(
    diagnosed: StoredRun, copy: Callable[[], StoredRun]
) -> None:
    artifact = made(diagnosed, "intervene")
    assert "cached" in diagnosed.run("intervene", 0, *SETTINGS)[0]
    again = copy()
    for stage in ("diagnose", "mistakes"):
        made(again, stage)
    assert "done" in again.run("intervene", 0, *SETTINGS)[0]
    assert made(again, "intervene").rows(Intervention) == artifact.rows(Intervention)


def test_a_policy_without_failures_has_empty_figures_and_a_sentence(diagnosed: StoredRun) -> None:
    # One turn is too short for a mistake that another turn follows, and mostly for any.
    short = ("environment.max_turns=1",)
    for stage in ("diagnose", "mistakes"):
        made(diagnosed, stage, 0, *short)
    assert not any(
        one.kind == "after_pivot" for one in made(diagnosed, "diagnose", 0, *short).rows(EpisodeReading)
    )
    for stage, sentence in (
        ("intervene", "nothing to intervene in"),
        ("agreement", "nothing to read"),
        ("probabilities", "no context to ask in"),
    ):
        part = part_of(made(diagnosed, stage, 0, *short))
        assert {one.value for one in part.figures} == {None}
        assert sentence in " ".join(part.notes)
