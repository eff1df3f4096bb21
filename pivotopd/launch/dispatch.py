"""Jobs of one run: submitted once, found again, awaited, cancelled.

A task is submitted only where no job for the same work is alive. Its record is written before the submission
and completed after it, so that whoever asks for the same work again, after a crash at any point, finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pivotopd.errors import ClusterError, PivotError
from pivotopd.launch.base import LOG, Launcher, State, Task
from pivotopd.launch.records import JobRecord, Records

SETTLE_S: Final = 15.0
"""How long a submission whose process is gone may still be under way: its sbatch can outlive it."""
ANSWER_S: Final = 180.0
"""How long a living process may take to submit; after that its record is taken for abandoned."""
_TAIL_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Submitted:
    """A task's job.

    Attributes:
        task: What was asked for.
        path: Of its record, in the store.
        record: The record; its job id is known.
        found: It was there already.
    """

    task: Task
    path: str
    record: JobRecord
    found: bool

    @property
    def job(self) -> str:
        """Id on the platform."""
        assert self.record.job is not None, "set before it is handed out"  # noqa: S101
        return self.record.job

    @property
    def log(self) -> Path:
        """The job's output."""
        return Path(self.record.folder) / LOG


@dataclass
class Dispatcher:
    """Submits, awaits and cancels the jobs of a run.

    Args:
        launcher: The platform.
        records: What is kept of jobs.
        say: Takes one line for the user.
        poll_s: Seconds between questions.
        patience_s: How long the platform may be out of reach.
        vanished_s: How long a job may be unknown to the platform.
    """

    launcher: Launcher
    records: Records
    say: Callable[[str], None]
    poll_s: float = 5.0
    patience_s: float = 1800.0
    vanished_s: float = 60.0
    _open: dict[str, Submitted] = field(default_factory=dict)
    _pending: dict[str, JobRecord] = field(default_factory=dict)

    def ensure(self, task: Task) -> Submitted:
        """Return the living job of a task, submitting it where there is none.

        Raises:
            ConfigError: The platform refuses it.
            ClusterError: The platform does not answer.
        """
        found = self._attach(task)
        while found is None:
            opened = self.records.open(task, self.launcher)
            found = self._attach(task) if opened is None else self._submit(task, *opened)
        self._open[found.job] = found
        verb = "found" if found.found else "submitted"
        self.say(f"{task.name}: {self.launcher.kind} job {found.job} {verb}; log {found.log}")
        return found

    def wait(self, submitted: Submitted, *, follow: bool = False) -> State:
        """Wait until a job has ended, however that is, and return how.

        Args:
            submitted: The job.
            follow: Say what it writes to its log.

        Raises:
            ClusterError: The platform has not answered for too long; the job stays.
        """
        shown, offset = "", submitted.log.stat().st_size if submitted.found and submitted.log.exists() else 0
        lost_since: float | None = None
        while True:
            state = self._state(submitted)
            if state.live:
                lost_since = None
                words = f"{state.phase}{f' ({state.reason})' if state.reason else ''}"
                if words != shown:
                    self.say(f"{submitted.task.name}: job {submitted.job} {words}")
                    shown = words
            elif state.phase == "lost":
                lost_since = time.monotonic() if lost_since is None else lost_since
            if follow:
                offset = self._show_log(submitted.log, offset)
            if not state.live and (lost_since is None or time.monotonic() - lost_since >= self.vanished_s):
                self._close(submitted, state)
                return state
            time.sleep(self.poll_s)

    def cancel_all(self) -> None:
        """Cancel what this process has submitted or found and not seen the end of."""
        for token, record in list(self._pending.items()):
            job = self.launcher.find(record.folder, token)
            if job is not None:
                self.launcher.cancel(job)
                self.say(f"{record.name}: job {job} cancelled")
            del self._pending[token]
        for submitted in list(self._open.values()):
            self.launcher.cancel(submitted.job)
            self.say(f"{submitted.task.name}: job {submitted.job} cancelled")
            self._close(submitted, State("cancelled", reason="the waiting command was stopped"))

    def _submit(self, task: Task, path: str, record: JobRecord) -> Submitted:
        self._pending[record.token] = record
        try:
            job = self.launcher.submit(task, record.folder, record.token)
        except ClusterError:
            raise
        except PivotError as error:  # refused: nothing was submitted
            self.records.save(path, record.model_copy(update={"ended": f"refused: {error.what}"}))
            del self._pending[record.token]
            raise
        record = record.model_copy(update={"job": job})
        self.records.save(path, record)
        submitted = Submitted(task, path, record, found=False)
        self._open[job] = submitted
        del self._pending[record.token]
        return submitted

    def _attach(self, task: Task) -> Submitted | None:
        """Return the job of the last submission if it is alive."""
        latest = self.records.latest(task)
        if latest is None or latest[1].ended is not None:
            return None
        path, record = latest
        while record.job is None and not self._given_up(record):
            time.sleep(min(self.poll_s, 1.0))
            latest = self.records.latest(task)
            if latest is None or latest[1].ended is not None:
                return None
            path, record = latest
        if record.job is None:
            job = self.launcher.find(record.folder, record.token)
            if job is None:
                self.records.save(path, record.model_copy(update={"ended": "never submitted"}))
                return None
            record = record.model_copy(update={"job": job})
            self.records.save(path, record)
        submitted = Submitted(task, path, record, found=True)
        state = self._state(submitted)
        if state.live:
            return submitted
        self._close(submitted, state)
        return None

    def _given_up(self, record: JobRecord) -> bool:
        """Whoever wrote the record will not complete it."""
        return record.age_s > (SETTLE_S if record.abandoned else ANSWER_S)

    def _state(self, submitted: Submitted) -> State:
        """Ask how a job is, as long as the platform may be out of reach."""
        since = time.monotonic()
        while True:
            try:
                return self.launcher.state(submitted.record.folder, submitted.job)
            except ClusterError as error:
                if time.monotonic() - since >= self.patience_s:
                    raise
                self.say(f"{submitted.task.name}: {error.what}; asking again")
                time.sleep(self.poll_s)

    def _close(self, submitted: Submitted, state: State) -> None:
        """Keep how a job ended."""
        words = state.phase if state.exit_code is None else f"{state.phase}, exit code {state.exit_code}"
        ended = f"{words}: {state.reason}" if state.reason else words
        self.records.save(submitted.path, submitted.record.model_copy(update={"ended": ended}))
        self._open.pop(submitted.job, None)

    def _show_log(self, log: Path, offset: int) -> int:
        """Say the whole lines that a log has got since."""
        try:
            with log.open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
        except FileNotFoundError:
            return offset
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.decode(errors="replace").splitlines():
            self.say(f"  {line}")
        return offset + len(whole)


def raise_for(submitted: Submitted, state: State) -> None:
    """Raise what a job's end means; nothing where it has done its work.

    Raises:
        PivotError: Of the class whose exit code the command ended with, with the error it told.
        ClusterError: It was ended or lost by the platform, or ended with no documented code.
    """
    if state.phase == "done":
        return
    where = str(submitted.log)
    name = f"job {submitted.job} ({submitted.task.name})"
    if state.phase == "failed" and state.exit_code is not None:
        told = last_error(submitted.log)
        for kind in _kinds():
            if kind.exit_code == state.exit_code and kind.exit_code != 1:
                what = f"{name}: {told}" if told else f"{name} ended with exit code {state.exit_code}"
                raise kind(what, where=where, mend="read its log; the same command goes on")
    said = {"cancelled": "was cancelled", "lost": "was lost"}.get(state.phase, "was ended")
    if state.exit_code is not None:
        said += f" with exit code {state.exit_code}"
    raise ClusterError(
        f"{name} {said}: {state.reason or 'no reason given'}",
        where=where,
        mend="read its log; the same command goes on from what is finished",
    )


def last_error(log: Path) -> str:
    """Return the last error that a command told in its log, or an empty text."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return told[-1] if told else ""


def _kinds() -> list[type[PivotError]]:
    return [kind for kind in PivotError.__subclasses__() if kind is not ClusterError]
