"""Streamed iterations: the same artifacts and counts as stage after stage, errors where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.iteration import SlowTeacher
from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.errors import TeacherError
from pivotopd.models.base import Completion
from pivotopd.records import Turn
from pivotopd.teacher.base import Query, Reading, Transcript
from pivotopd.teacher.oracle import OracleTeacher
from stages.joint import Joined
from stages.plan import LOOP
from stages.runner import Done, Streamer, streamed
from stages.runs import open_run
from stages.teaching import teacher_of
from tests.small_student import small_config

CASES: dict[str, dict[str, object]] = {
    "pivotopd K=1": {},
    "pivotopd K=2, no limit": {"recovery": {"depth": 2, "limit": 1000}},
    "pivotopd K=2, limit 2": {"recovery": {"depth": 2, "limit": 2}},
    "random pivots": {"method": {"name": "pivotopd", "pivot_turns": "random"}},
    "reverse recovery": {"method": {"name": "pivotopd", "recovery_kl": "reverse"}},
    "replay": {"recovery": {"depth": 2, "limit": 1000, "reach": "replay"}},
    "grpo": {"method": {"name": "grpo"}},
    "rlsd": {"method": {"name": "rlsd"}},
    "skill_sd": {"method": {"name": "skill_sd"}},
}


def iteration(config: RunConfig, streaming: str) -> dict[str, Done]:
    """Run the first iteration up to the update, and return what is done by stage."""
    work, plan = open_run(config.model_copy(update={"streaming": streaming}))
    found: dict[str, Done] = {}
    with closing(work), closing(Streamer(partial(streamed, plan))) as streamer:
        if plan.with_skills:
            streamer.perform(work, plan.skills())
        for stage in plan.stages():
            if stage != "update":
                found[stage] = streamer.perform(work, plan.job(stage, 0))
                assert not found[stage].cached
    return found


def content(artifact: Artifact) -> tuple[object, ...]:
    manifest = artifact.manifest
    parts = tuple((part.table, part.sha256) for part in manifest.parts)
    logs = tuple(file.sha256 for file in manifest.files)
    return manifest.content_digest, parts, logs, manifest.counts


def rows(artifact: Artifact) -> list[Turn]:
    """Return the turns without the log-probabilities, whose last bits change with a batch's shapes."""
    return [replace(turn, behaviour_logprobs_nats=()) for turn in artifact.rows(Turn)]


@pytest.mark.parametrize(
    ("case", "batch"), [*((case, 64) for case in CASES), ("pivotopd K=2, limit 2", 2), ("grpo", 1)]
)
def test_streaming_changes_no_artifact(case: str, batch: int, student: Path, tmp_path: Path) -> None:
    changes = CASES[case] | {"rollout__batch_episodes": batch}
    plain = iteration(small_config(tmp_path / "plain", student, **changes), "none")
    found = iteration(small_config(tmp_path / "exact", student, **changes), "exact")
    assert found.keys() == plain.keys()
    for stage, done in found.items():
        assert done.job.digest == plain[stage].job.digest
        assert content(done.artifact) == content(plain[stage].artifact), stage


def exact(artifact: Artifact) -> dict[str, int]:
    """Return the counts that do not vary with how the work was done."""
    manifest = artifact.manifest
    assert min(manifest.counts.values()) >= 0
    return {name: count for name, count in manifest.counts.items() if name not in manifest.varying}


@pytest.mark.parametrize("batch", [1, 4])
def test_joined_batches_change_no_token_and_no_count(batch: int, student: Path, tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "recovery": {"depth": 2, "limit": 1000}, "rollout__batch_episodes": batch,
    }  # fmt: skip
    plain = iteration(small_config(tmp_path / "plain", student, **changes), "none")
    found = iteration(small_config(tmp_path / "joined", student, **changes), "joined")
    for stage in ("rollout", "recover"):
        one, other = found[stage].artifact, plain[stage].artifact
        assert rows(one) == rows(other)
        for ours, theirs in zip(one.rows(Turn), other.rows(Turn), strict=True):
            assert ours.behaviour_logprobs_nats == pytest.approx(theirs.behaviour_logprobs_nats, abs=1e-4)
        assert exact(one) == exact(other)
    assert content(found["label"].artifact) == content(plain["label"].artifact)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the oracle answer late, from a thread, as a teacher behind an endpoint does."""
    made = teacher_of
    monkeypatch.setattr(
        "stages.stream.teacher_of", lambda work, job: SlowTeacher(made(work, job), 0.02, lessons=False)
    )
    monkeypatch.setattr("stages.stream.waits_for", lambda _config: True)


@pytest.mark.usefixtures("slow")
def test_a_teacher_that_answers_late_changes_nothing(student: Path, tmp_path: Path) -> None:
    changes: dict[str, object] = {"recovery": {"depth": 2, "limit": 1000}}
    plain = iteration(small_config(tmp_path / "plain", student, **changes), "none")
    found = iteration(small_config(tmp_path / "streamed", student, **changes), "exact")
    for stage, done in found.items():
        assert content(done.artifact) == content(plain[stage].artifact), stage


def test_recoveries_join_the_batches_of_the_rollout(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[int] = []
    land = Joined.land

    def watched(self: Joined) -> dict[int, Completion]:
        before = self.recoveries.used.prompts
        found = land(self)
        joined.append(self.recoveries.used.prompts - before)
        return found

    monkeypatch.setattr(Joined, "land", watched)
    changes: dict[str, object] = {"recovery": {"depth": 1, "limit": 1000}, "rollout__batch_episodes": 4}
    found = iteration(small_config(tmp_path / "root", student, **changes), "joined")
    assert 0 < sum(joined) <= found["recover"].artifact.manifest.counts["prompts"]


@pytest.mark.parametrize(("asked", "stage"), [("read", "label"), ("next_actions", "recover")])
def test_an_error_belongs_to_its_stage_and_costs_nothing_published(
    asked: str, stage: str, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: object, _asked: Sequence[Transcript] | Sequence[Query]) -> list[Reading]:
        raise TeacherError("the teacher went away")

    config = small_config(
        tmp_path / "root", student, streaming="joined", recovery={"depth": 1, "limit": 1000}
    )
    work, plan = open_run(config)
    with closing(work), closing(Streamer(partial(streamed, plan))) as streamer:
        with monkeypatch.context() as patch:
            patch.setattr(OracleTeacher, asked, fails)
            for earlier in LOOP[: LOOP.index(stage)]:
                streamer.perform(work, plan.job(earlier, 0))
            with pytest.raises(TeacherError, match="went away"):
                streamer.perform(work, plan.job(stage, 0))
        again = {one: streamer.perform(work, plan.job(one, 0)) for one in LOOP[:3]}
    plain = iteration(config.model_copy(update={"root": str(tmp_path / "plain")}), "none")
    for one, done in again.items():
        assert done.cached == (LOOP.index(one) < LOOP.index(stage))
        assert content(done.artifact) == content(plain[one].artifact)


def test_a_rollout_that_is_there_is_followed_stage_by_stage(student: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path / "root", student, streaming="exact")
    work, plan = open_run(config)
    with closing(work):
        Streamer(partial(streamed, plan)).perform(work, plan.job("rollout", 0))
        other = Streamer(partial(streamed, plan))
        found = {stage: other.perform(work, plan.job(stage, 0)) for stage in LOOP[:3]}
    assert [done.cached for done in found.values()] == [True, False, False]
    plain = iteration(config.model_copy(update={"root": str(tmp_path / "plain")}), "none")
    assert {one: content(done.artifact) for one, done in found.items()} == {
        one: content(done.artifact) for one, done in plain.items()
    }
