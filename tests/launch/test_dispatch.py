"""Jobs are submitted once, found again by who comes later, awaited to whatever end, and cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pivotopd.artifacts import RunLayout
from pivotopd.errors import ArtifactError, ClusterError, ConfigError, Preempted, TeacherError
from pivotopd.launch import dispatch
from pivotopd.launch.base import Needed, State, Task
from pivotopd.launch.dispatch import Dispatcher, Submitted, raise_for
from pivotopd.launch.records import JobRecord, Records
from pivotopd.stops import StopSignal

DONE = State("done", 0, "COMPLETED")
TASK = Task("recover-0003", "ab" * 32, ("-m", "stages.recover"), Needed())


@dataclass
class Platform:
    """A platform that plays states; the last one stays."""

    states: list[State | ClusterError] = field(default_factory=lambda: [DONE])
    refusal: BaseException | None = None
    known: str | None = None
    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    kind: str = "played"
    chains: bool = True

    def render(self, task: Task, folder: str, token: str) -> str:
        return f"{task.name} {folder} {token}"

    def submit(self, task: Task, folder: str, token: str) -> str:
        del task
        assert Path(folder, "job.sh").is_file()
        record = json.loads(Path(folder, "job.json").read_text())
        assert (record["job"], record["token"]) == (None, token), "written before the submission"
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(token)
        return str(len(self.submitted))

    def find(self, folder: str, token: str) -> str | None:
        return self.known

    def state(self, folder: str, job: str) -> State:
        now = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(now, ClusterError):
            raise now
        return now

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)


@pytest.fixture
def platform() -> Platform:
    return Platform([State("running")])


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(RunLayout(str(tmp_path), "run"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SETTLE_S", 0.0)


def dispatcher(platform: Platform, records: Records, said: list[str]) -> Dispatcher:
    """As another process would have it."""
    return Dispatcher(platform, records, said.append, poll_s=0.01, patience_s=0.1, vanished_s=0.05)


def stored(records: Records) -> JobRecord:
    latest = records.latest(TASK)
    assert latest is not None
    return latest[1]


def test_it_is_recorded_before_anybody_waits_and_awaited(
    platform: Platform, records: Records, said: list[str]
) -> None:
    first = dispatcher(platform, records, said)
    submitted = first.ensure(TASK)
    assert stored(records).job == submitted.job == "1"
    assert stored(records).ended is None
    platform.states = [State("waiting", reason="Priority"), State("running"), State("running"), DONE]
    assert first.wait(submitted) == DONE
    assert stored(records).ended == "done, exit code 0: COMPLETED"
    assert said[1:] == ["recover-0003: job 1 waiting (Priority)", "recover-0003: job 1 running"]


def test_another_process_finds_the_living_job(platform: Platform, records: Records, said: list[str]) -> None:
    dispatcher(platform, records, said).ensure(TASK)
    found = dispatcher(platform, records, said).ensure(TASK)
    assert (found.job, found.found, len(platform.submitted)) == ("1", True, 1)


@pytest.mark.parametrize(
    "ended", [DONE, State("failed", 5), State("cancelled"), State("lost"), State("failed", None, "NODE_FAIL")]
)
def test_after_its_end_the_same_work_is_submitted_anew(
    platform: Platform, records: Records, said: list[str], ended: State
) -> None:
    dispatcher(platform, records, said).ensure(TASK)
    platform.states = [ended]
    again = dispatcher(platform, records, said).ensure(TASK)
    assert (again.job, again.found) == ("2", False)
    assert again.path.endswith("/002"), "the earlier one's log stays"


def test_other_work_is_another_job(platform: Platform, records: Records, said: list[str]) -> None:
    one = dispatcher(platform, records, said)
    one.ensure(TASK)
    assert one.ensure(Task(TASK.name, "cd" * 32, TASK.arguments, Needed())).job == "2"


@pytest.mark.parametrize("known", ["41", None])
def test_a_submission_whose_process_died_in_the_middle(
    platform: Platform, records: Records, said: list[str], known: str | None
) -> None:
    opened = records.open(TASK, platform)
    assert opened is not None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    records.save(opened[0], opened[1].model_copy(update={"pid": gone.pid}))
    platform.known = known
    found = dispatcher(platform, records, said).ensure(TASK)
    assert (found.job, found.found) == ((known, True) if known else ("1", False))
    assert stored(records).job == found.job


def test_a_submission_that_is_under_way_elsewhere_is_waited_for(
    platform: Platform, records: Records, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = records.open(TASK, platform)
    assert opened is not None
    path, record = opened[0], opened[1].model_copy(update={"host": "elsewhere"})
    records.save(path, record)
    monkeypatch.setattr(
        dispatch.time, "sleep", lambda _s: records.save(path, record.model_copy(update={"job": "77"}))
    )
    assert dispatcher(platform, records, said).ensure(TASK).job == "77"
    assert not platform.submitted


def test_a_refusal_leaves_no_job_to_find(platform: Platform, records: Records, said: list[str]) -> None:
    platform.refusal = ConfigError("no such partition")
    with pytest.raises(ConfigError):
        dispatcher(platform, records, said).ensure(TASK)
    assert stored(records).ended == "refused: no such partition"
    platform.refusal = None
    assert dispatcher(platform, records, said).ensure(TASK).job == "1"


def test_a_platform_out_of_reach_for_a_while_is_asked_again(
    platform: Platform, records: Records, said: list[str]
) -> None:
    one = dispatcher(platform, records, said)
    submitted = one.ensure(TASK)
    platform.states = [ClusterError("away"), ClusterError("away"), DONE]
    assert one.wait(submitted) == DONE
    assert sum("asking again" in line for line in said) == 2


def test_out_of_reach_for_too_long_the_job_stays(
    platform: Platform, records: Records, said: list[str]
) -> None:
    one = dispatcher(platform, records, said)
    submitted = one.ensure(TASK)
    platform.states = [ClusterError("away")]
    with pytest.raises(ClusterError):
        one.wait(submitted)
    assert not platform.cancelled
    platform.states = [State("running")]
    assert dispatcher(platform, records, said).ensure(TASK).found


def test_a_job_that_is_unknown_for_a_moment_is_not_lost(
    platform: Platform, records: Records, said: list[str]
) -> None:
    one = dispatcher(platform, records, said)
    submitted = one.ensure(TASK)
    platform.states = [State("lost"), State("running"), DONE]
    assert one.wait(submitted) == DONE
    platform.states = [State("lost", reason="unknown")]
    submitted = one.ensure(TASK)
    assert one.wait(submitted).phase == "lost"


def test_cancel_reaches_every_open_job_and_no_other(
    platform: Platform, records: Records, said: list[str]
) -> None:
    one = dispatcher(platform, records, said)
    over, living = one.ensure(TASK), one.ensure(Task("b", "b" * 64, (), Needed()))
    platform.states = [DONE]
    one.wait(over)
    one.cancel_all()
    assert platform.cancelled == [living.job]


def test_cancel_reaches_a_job_whose_submission_was_interrupted(
    platform: Platform, records: Records, said: list[str]
) -> None:
    one = dispatcher(platform, records, said)
    platform.refusal = StopSignal(signal.SIGTERM)
    with pytest.raises(StopSignal):
        one.ensure(TASK)
    platform.known = "9"
    one.cancel_all()
    assert platform.cancelled == ["9"]


def test_the_log_is_shown_as_it_grows(platform: Platform, records: Records, said: list[str]) -> None:
    one = dispatcher(platform, records, said)
    submitted = one.ensure(TASK)
    submitted.log.write_bytes("first\nsecönd\nhalf".encode())
    platform.states = [DONE]
    one.wait(submitted, follow=True)
    assert said[-2:] == ["  first", "  secönd"]


def test_a_bucket_needs_a_shared_folder(platform: Platform, tmp_path: Path) -> None:
    layout = RunLayout("memory://bucket/runs", "run")
    with pytest.raises(ConfigError, match="in a bucket") as caught:
        Records(layout).open(TASK, platform)
    assert caught.value.where == "launch.slurm.folder"
    opened = Records(layout, str(tmp_path)).open(TASK, platform)
    assert opened is not None
    folder = Path(opened[1].folder)
    assert folder.is_relative_to(tmp_path)
    script = layout.store.read_text(f"{opened[0]}/job.sh")
    assert script == (folder / "job.sh").read_text()


def test_a_record_that_cannot_be_read_is_said(platform: Platform, records: Records) -> None:
    opened = records.open(TASK, platform)
    assert opened is not None
    Path(opened[1].folder, "job.json").write_text("{}")
    with pytest.raises(ArtifactError, match="record of a job"):
        records.latest(TASK)


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (State("failed", 5), TeacherError, "the server is gone"),
        (State("failed", 75), Preempted, "the server is gone"),
        (State("failed", 1, "FAILED"), ClusterError, "ended with exit code 1"),
        (State("failed", None, "OUT_OF_MEMORY"), ClusterError, "was ended: OUT_OF_MEMORY"),
        (State("failed", None, "TIMEOUT"), ClusterError, "was ended: TIMEOUT"),
        (State("cancelled", 75, "CANCELLED"), ClusterError, "was cancelled"),
        (State("lost", None, "unknown"), ClusterError, "was lost: unknown"),
    ],
)
def test_an_end_becomes_the_error_of_its_exit_code(
    platform: Platform,
    records: Records,
    said: list[str],
    state: State,
    kind: type[Exception],
    words: str,
) -> None:
    submitted = dispatcher(platform, records, said).ensure(TASK)
    submitted.log.write_text("error: an earlier try\nerror: the server is gone\n  where: here\n")
    with pytest.raises(kind, match=words) as caught:
        raise_for(submitted, state)
    assert caught.value.where == str(submitted.log)  # type: ignore[attr-defined]  # PivotError has it
    raise_for(submitted, DONE)


def test_a_process_that_lives_has_not_abandoned_its_record(platform: Platform, records: Records) -> None:
    opened = records.open(TASK, platform)
    assert opened is not None
    assert opened[1].abandoned, "asked by the same process, which is past it"
    assert not opened[1].model_copy(update={"pid": os.getppid()}).abandoned
    assert not opened[1].model_copy(update={"host": "elsewhere", "pid": 1}).abandoned
    assert isinstance(Submitted(TASK, "", opened[1], found=False).log, Path)
