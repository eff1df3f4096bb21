"""``python -m pivotopd.launch.srun ARGUMENTS``: srun whose job is asked to end, not killed, with it.

srun kills its tasks outright where it gets SIGTERM, which is how Prefect's worker cancels a flow run: the run
in MLflow would stay RUNNING, and Prefect would read a lack of memory from the exit code. Here SLURM itself
cancels the job: SIGTERM to its processes, SIGKILL where they live on after the site's KillWait (30 s).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from pivotopd.errors import ConfigError
from pivotopd.exits import run_and_leave
from pivotopd.stops import stop_signals

_ANSWER_S: Final = 10.0
"""How long one of SLURM's programs may take; Prefect's worker kills this process after 30 s."""


def run(arguments: Sequence[str]) -> int:
    """Run srun to its end and return its exit code, 128 and its number where a signal ended it.

    Args:
        arguments: Those of srun, the program included. The job is found by its comment: with a ``--comment``
            among them it is not, and srun ends as it does by itself.

    Raises:
        ConfigError: srun is not installed here.
    """
    name = f"pivotopd-{uuid4().hex}"
    command = ["srun", f"--comment={name}", *arguments]
    with stop_signals():
        try:
            # in a session of its own: Ctrl-C reaches this process, and through it the job
            process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - what the caller says
        except FileNotFoundError as error:
            raise ConfigError(
                "srun is not installed here", mend="start the worker on a login node of the cluster"
            ) from error
        try:
            code = process.wait()
        except KeyboardInterrupt:
            _end(process, name)
            code = process.wait()
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes], name: str) -> None:
    """Have SLURM cancel the job of an srun; one that has none yet, or is not found, is srun's to end."""
    jobs = _jobs_of(name)
    if not jobs or _answer("scancel", *jobs) is None:
        process.terminate()


def _jobs_of(name: str) -> list[str]:
    """Return the ids of the jobs with a name in their comment."""
    listed = _answer("squeue", "--me", "--noheader", "--Format=JobID:|,Comment:|") or ""
    rows = (line.strip().partition("|") for line in listed.splitlines())
    return [job for job, _, comment in rows if name in comment]


def _answer(*command: str) -> str | None:
    """Return what one of SLURM's programs prints, or None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_S)  # noqa: S603 - SLURM's own
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


if __name__ == "__main__":
    run_and_leave(lambda: run(sys.argv[1:]))
