"""SLURM through its own programs: sbatch, squeue, scancel, and sacct where the site keeps accounts.

How a job ended is read from the exit code that its script leaves in its folder, so accounting may be off; a
job that left none is what squeue, or else sacct, says of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pivotopd.errors import ClusterError, ConfigError, StorageError
from pivotopd.launch.base import SCRIPT, Phase, State, Task
from pivotopd.launch.slurm_script import render_script
from pivotopd.launch.slurm_section import SlurmSection

_ANSWER_S: Final = 60.0
"""How long one of SLURM's programs may take."""
_WAITING: Final = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
_RUNNING: Final = frozenset(
    ["RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "COMPLETING"]
)
_NEVER: Final = "DependencyNeverSatisfied"
"""Why a job waits that the next pass of the scheduler cancels."""
_UNKNOWN: Final = "Invalid job id"
_KEPT_VARIABLES: Final = frozenset({"SLURM_CONF", "SLURM_CLUSTERS"})


@dataclass(frozen=True)
class Slurm:
    """The launcher.

    Args:
        section: Its settings.
        workdir: Folder in which jobs run, absolute.
    """

    section: SlurmSection
    workdir: str = field(default_factory=os.getcwd)
    kind: str = "slurm"
    chains: bool = True

    def render(self, task: Task, folder: str, token: str) -> str:
        """Return the batch script of a task; ConfigError where a folder's name cannot stand in one."""
        del token  # an option of sbatch
        return render_script(task, self.section, folder=folder, workdir=self.workdir)

    def submit(self, task: Task, folder: str, token: str) -> str:
        """Submit a task's script, which lies in its folder, and return the job's id.

        Raises:
            ConfigError: SLURM refuses it, or is not installed here.
            ClusterError: Its controller does not answer.
        """
        options = ["--parsable", f"--job-name={token}"]
        if task.after:
            options += [f"--dependency=afterok:{':'.join(task.after)}", "--kill-on-invalid-dep=yes"]
        done = _run(["sbatch", *options, f"{folder}/{SCRIPT}"])
        job = done.stdout.strip().partition(";")[0]
        if done.returncode == 0 and job.isdigit():
            return job
        if _out_of_reach(done.stderr):
            raise _unreachable("sbatch", done.stderr)
        raise ConfigError(
            f"SLURM refuses the job: {_reason(done)}",
            where=f"{folder}/{SCRIPT}",
            mend="change launch.resources or launch.slurm to what `sinfo` and the site allow",
        )

    def find(self, folder: str, token: str) -> str | None:
        """Return the id of the job with a token: its script told it at its start, or the queue has it."""
        started = _text(Path(folder) / "started")
        if started is not None and started.isdigit():
            return started
        done = _run(["squeue", "--noheader", "--states=all", f"--name={token}", "--format=%i"])
        if done.returncode:
            raise _unreachable("squeue", done.stderr)
        found = done.stdout.split()
        return found[0] if found else None

    def state(self, folder: str, job: str) -> State:
        """Say how a job is; ClusterError where nobody answers."""
        text = _text(Path(folder) / "exit_code")
        code = int(text) if text is not None and text.isdigit() else None
        try:
            word, reason = self._queue(job)
        except ClusterError:
            if code in (None, 75):  # 75: it may have been requeued since
                raise
            return _ended(code, "")
        if word in _WAITING and reason == _NEVER:
            return State("cancelled", reason=reason)
        if word in _WAITING:
            return State("waiting", reason=reason)
        if word in _RUNNING and (code in (None, 75) or word != "COMPLETING"):
            return State("running", reason=reason)
        if code is not None:
            return _ended(code, word)
        if not word:
            word, code = _accounts(job)
        return _without_file(word, code)

    def cancel(self, job: str) -> None:
        """Cancel a job; one that has ended is no error."""
        done = _run(["scancel", job])
        if done.returncode and _UNKNOWN not in done.stderr:
            raise _unreachable("scancel", done.stderr)

    def _queue(self, job: str) -> tuple[str, str]:
        """Return SLURM's word for a job's state and why it waits; an empty word for an unknown job."""
        done = _run(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r"])
        if done.returncode:
            if _UNKNOWN in done.stderr:
                return "", ""
            raise _unreachable("squeue", done.stderr)
        word, _, reason = done.stdout.strip().partition("|")
        return word, "" if reason == "None" else reason


def _ended(code: int | None, word: str) -> State:
    if word.startswith("CANCELLED"):
        return State("cancelled", code, word)
    return State("done" if code == 0 else "failed", code, word)


def _without_file(word: str, code: int | None) -> State:
    """Return the state of a job that left no exit code: it was killed, or its folder is out of reach."""
    if not word:
        return State("lost", reason="SLURM does not know the job, and it left no exit code")
    if word == "COMPLETED":
        return State("done", 0, word)
    phase: Phase = "cancelled" if word.startswith("CANCELLED") else "failed"
    return State(phase, code, word)


def _accounts(job: str) -> tuple[str, int | None]:
    """Return a job's state and exit code from the site's accounts; an empty word where it keeps none."""
    if shutil.which("sacct") is None:
        return "", None
    done = _run(
        ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State,ExitCode"]
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return "", None
    word, _, codes = lines[-1].partition("|")
    code = codes.partition(":")[0]
    ended_by_itself = word in ("COMPLETED", "FAILED")
    return word, int(code) if code.isdigit() and ended_by_itself else None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's programs; what belongs to a job that this process may run in is kept from it."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in _KEPT_VARIABLES
    }
    try:
        return subprocess.run(  # noqa: S603 - SLURM's programs with our own arguments
            list(command),
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            env=variables,
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"SLURM's program {command[0]} is not on PATH",
            where=command[0],
            mend="run this on a login node of the cluster, or install SLURM's client programs",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise _unreachable(command[0], f"no answer within {_ANSWER_S:g} s") from error


def _text(path: Path) -> str | None:
    """Return what a job's script left in its folder, or None where it has left nothing."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"cannot read what a job left: {error.strerror or error}",
            where=str(path),
            mend="check that the folder is in reach from here, then run the same command again",
        ) from error


def _out_of_reach(message: str) -> bool:
    marks = ("Unable to contact", "Connection refused", "Socket timed out", "Zero Bytes", "try again")
    return any(mark.lower() in message.lower() for mark in marks)


def _unreachable(program: str, message: str) -> ClusterError:
    return ClusterError(
        f"SLURM does not answer: {' '.join(message.split())[:300]}",
        where=program,
        mend="look at `sinfo`; the same command goes on with the jobs that are there",
    )


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
    return "; ".join(line for line in lines if line)[:500] or f"sbatch ended with code {done.returncode}"
