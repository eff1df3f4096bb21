"""Scores that are there before the update begins: the same bits and counts, and errors where they belong."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from benchmarks.iteration import SlowTeacher
from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.environments.base import Environment
from pivotopd.errors import NumericsError
from pivotopd.models.base import Nats, ScoreRequest
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.records import Episode, Turn
from pivotopd.stops import StopSignal
from pivotopd.teacher.base import Query, Reading, Transcript
from pivotopd.teacher.registry import make_teacher
from stages.ahead import PHASE, Ahead
from stages.runner import Streamer, streamed
from stages.runs import open_run
from stages.work import Stopwatch, Work
from tests.small_student import small_config
from tests.stages.test_stream import content, exact

PATIENCE_S = 60.0
"""How long a teacher waits for scores; only a failing test waits that long."""
CASES: dict[str, dict[str, object]] = {
    "lesson, K=2": {
        "method": {"name": "pivotopd", "lesson_weight": 0.1},
        "recovery": {"depth": 2, "limit": 4},
    },
    "K=1, no limit": {"recovery": {"depth": 1, "limit": 1000}},
    "no recoveries": {"method": {"name": "opid"}, "update__idle_limit": 9},
    "grpo": {"method": {"name": "grpo"}, "update__idle_limit": 9},
}


@dataclass
class Idle:
    """Whether nothing is left to score before labels, and before recoveries."""

    unlabelled: Event = field(default_factory=Event)
    labelled: Event = field(default_factory=Event)
    told: bool = False
    """Labels are there."""

    def begin(self) -> None:
        self.told = False
        self.unlabelled.clear()
        self.labelled.clear()


class Waiting(SlowTeacher):
    """A teacher with lessons that answers once nothing is left to score."""

    idle: Idle

    def read(self, transcripts: Sequence[Transcript], sample: int = 0) -> list[Reading]:
        assert self.idle.unlabelled.wait(PATIENCE_S)
        return super().read(transcripts, sample)

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        assert self.idle.unlabelled.wait(PATIENCE_S)
        return super().analyse(transcripts)

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        assert self.idle.labelled.wait(PATIENCE_S)
        return super().next_actions(queries)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> Idle:
    """Let a streamed iteration's teacher answer from a thread, once nothing is left to score meanwhile."""
    idle, step, labelled = Idle(), Ahead._step, Ahead.labelled

    def waiting(config: RunConfig, environment: Environment, _speaker: object = None) -> SlowTeacher:
        teacher = make_teacher(config, environment)
        if config.streaming == "none":
            return SlowTeacher(teacher, 0.0, lessons=True)
        idle.begin()
        found = Waiting(teacher, 0.0, lessons=True)
        found.idle = idle
        return found

    def stepped(self: Ahead) -> bool:
        more = step(self)
        if not more:
            (idle.labelled if idle.told else idle.unlabelled).set()
        return more

    def told(self: Ahead, episodes: Sequence[Episode], rows: Sequence[Turn]) -> None:
        labelled(self, episodes, rows)
        idle.told = True

    monkeypatch.setattr("stages.teaching.make_teacher", waiting)
    monkeypatch.setattr("stages.stream.waits_for", lambda _config: True)
    monkeypatch.setattr(Ahead, "_step", stepped)
    monkeypatch.setattr(Ahead, "labelled", told)
    return idle


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of requests of every call that was computed."""
    made: list[int] = []
    score = TransformersEngine.score

    def watched(self: TransformersEngine, requests: Sequence[ScoreRequest]) -> list[Nats]:
        made.append(len(requests))
        return score(self, requests)

    monkeypatch.setattr(TransformersEngine, "score", watched)
    return made


def iterations(config: RunConfig, count: int = 2) -> Iterator[tuple[str, Artifact]]:
    """Run iterations, and yield each stage's artifact when it is done."""
    work, plan = open_run(config)
    with closing(work), closing(Streamer(partial(streamed, plan))) as streamer:
        for number in range(count):
            for stage in plan.stages():
                yield f"{number}/{stage}", streamer.perform(work, plan.job(stage, number)).artifact


@pytest.mark.parametrize("case", CASES)
def test_an_update_scored_ahead_has_the_same_bits_and_counts(
    case: str, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pivotopd.scoring.PART_TOKENS", 1)  # so that there are several
    plain = dict(iterations(small_config(tmp_path / "plain", student, **CASES[case])))
    changes = CASES[case] | {"streaming": "exact"}
    found = dict(iterations(small_config(tmp_path / "exact", student, **changes)))
    assert found.keys() == plain.keys()
    for name, artifact in found.items():
        assert content(artifact) == content(plain[name]), name
        assert min(artifact.manifest.counts.values()) >= 0
    ahead = {name: artifact.manifest.seconds.get(PHASE, 0.0) > 0 for name, artifact in found.items()}
    assert not any(ahead.get(f"{number}/{stage}") for number in (0, 1) for stage in ("rollout", "update"))
    assert ahead.get("1/label", False) == (case != "grpo")
    assert ahead.get("1/recover", False) == ("K" in case)


def test_joined_recoveries_are_scored_with_the_same_counts(student: Path, tmp_path: Path) -> None:
    changes: dict[str, object] = {"recovery": {"depth": 2, "limit": 1000}, "rollout__batch_episodes": 4}
    plain = dict(iterations(small_config(tmp_path / "plain", student, **changes), 1))
    changes["streaming"] = "joined"
    found = dict(iterations(small_config(tmp_path / "joined", student, **changes), 1))
    for name, artifact in found.items():
        assert exact(artifact) == exact(plain[name]), name


def test_before_the_teacher_answers_all_is_scored_that_needs_no_recovery(
    student: Path, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pivotopd.scoring.PART_TOKENS", 1)
    config = small_config(tmp_path / "root", student, streaming="exact")
    made = {}
    for name, artifact in iterations(config):
        made[name] = list(calls)
        calls.clear()
        if name.endswith("rollout"):
            rows = len(artifact.rows(Turn))
    groups = config.rollout.tasks
    assert made["0/label"] == []  # the reference is the policy
    assert len(made["1/label"]) == groups
    assert sum(made["1/label"]) == rows
    assert len(made["0/recover"]) == len(made["1/recover"]) == groups
    assert sum(made["1/recover"]) > rows  # hinted prompts beside the plain ones
    assert len(made["0/update"]) == 1  # the recovery rows
    assert len(made["1/update"]) == 2  # and by the reference


def test_an_error_of_scoring_is_the_update_s(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: object, _requests: Sequence[ScoreRequest]) -> list[Nats]:
        raise NumericsError("not a number")

    config = small_config(tmp_path / "root", student, streaming="exact")
    plain = dict(iterations(small_config(tmp_path / "plain", student), 1))
    done = iterations(config, 1)
    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "score", fails)
        found = [next(done) for _ in range(3)]
        with pytest.raises(NumericsError, match="not a number"):
            next(done)
    for name, artifact in found:
        assert content(artifact) == content(plain[name])
    again = dict(iterations(config, 1))
    assert content(again["0/update"])[:3] == content(plain["0/update"])[:3]


def test_a_stop_signal_ends_the_wait(student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(_self: object, _requests: Sequence[ScoreRequest]) -> list[Nats]:
        raise RuntimeError("a library stumbled") from StopSignal(signal.SIGTERM)

    monkeypatch.setattr(TransformersEngine, "score", stops)
    config = small_config(tmp_path / "root", student, streaming="exact", method={"name": "pivotopd"})
    done = iterations(config, 1)
    assert [next(done)[0] for _ in range(2)] == ["0/rollout", "0/label"]
    with pytest.raises(RuntimeError, match="stumbled"):
        next(done)


def test_seconds_aside_are_not_those_of_the_phase_they_interrupt() -> None:
    watch = Stopwatch()
    with watch.phase("teach"):
        with watch.aside("ahead"):
            assert list(watch.seconds) == ["teach", "ahead", "other"]
        with watch.aside("ahead"):
            pass
        with pytest.raises(ValueError, match="inside"), watch.phase("write"):
            pass
    with watch.aside("ahead"):
        pass
    seconds = watch.seconds
    assert list(seconds) == ["teach", "ahead", "other"]
    assert min(seconds.values()) >= 0


def test_scores_are_kept_for_one_update_only(student: Path, tmp_path: Path) -> None:
    work, plan = open_run(small_config(tmp_path / "root", student))
    with closing(work):
        first, other = plan.job("update", 0), plan.job("update", 1)
        Ahead(work, first)
        from stages.ahead import scorers_of

        assert scorers_of(work, other) == work.scorer
        assert scorers_of(work, first) == work.scorer  # they are gone then
        ahead = Ahead(work, first)
        assert scorers_of(work, first) == ahead.scorer
        assert isinstance(work, Work)
