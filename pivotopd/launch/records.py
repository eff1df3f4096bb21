"""What is kept of a job beside its run: written before anybody waits, so that another process finds it.

Layout: ``RUN/jobs/NAME-WORK/001/`` with the script and ``job.json``; another try of the same work has the
next number. The job's log and exit code lie in a folder that the cluster sees: the same one, where the run
is in a folder, else below ``launch.slurm.folder``.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, ValidationError

from pivotopd.artifacts import RunLayout
from pivotopd.blobs import alive
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.launch.base import SCRIPT, Launcher, Task
from pivotopd.section import Count, Section

RECORD: Final = "job.json"


class JobRecord(Section):
    """One submission."""

    version: int = 1
    """Format of this record."""
    platform: str
    """Who was asked: `slurm`."""
    name: str
    """Name for people."""
    token: str
    """The job's name on the platform, which no other submission has."""
    work: str
    """Digest of the work."""
    arguments: tuple[str, ...]
    """What follows Python in the command."""
    after: tuple[str, ...] = ()
    """Jobs that must have succeeded before."""
    folder: str
    """Folder of its log and exit code."""
    created_at: AwareDatetime
    """When it was about to be submitted."""
    host: str
    """Where it was submitted from."""
    pid: Count
    """Process that submitted it."""
    job: str | None = None
    """Id on the platform; null until it has answered."""
    ended: str | None = None
    """How it ended, once somebody has seen it."""

    @property
    def age_s(self) -> float:
        """Seconds since it was written."""
        return (datetime.now(UTC) - self.created_at).total_seconds()

    @property
    def abandoned(self) -> bool:
        """Whoever submitted it is known to be gone."""
        if self.host != socket.gethostname():
            return False
        return self.pid == os.getpid() or not alive(self.pid)  # ours is an earlier try


@dataclass(frozen=True)
class Records:
    """The jobs of a run.

    Args:
        layout: The run.
        shared: Folder for logs and exit codes; None takes the run's.
    """

    layout: RunLayout
    shared: str | None = None

    def latest(self, task: Task) -> tuple[str, JobRecord] | None:
        """Return the last submission of a task and its path in the store, or None.

        Raises:
            ArtifactError: A record cannot be read.
        """
        prefix = self._prefix(task)
        for attempt in reversed(self._attempts(prefix)):
            path = f"{prefix}/{attempt:03d}"
            data = self.layout.store.blobs.read(f"{path}/{RECORD}")
            if data is not None:
                return path, _parsed(data, self.layout.store.join(f"{path}/{RECORD}"))
        return None

    def open(self, task: Task, launcher: Launcher) -> tuple[str, JobRecord] | None:
        """Write the record and script of a new submission; None where another process was quicker.

        Raises:
            ConfigError: The run is in a bucket and no shared folder is given.
        """
        blobs, prefix = self.layout.store.blobs, self._prefix(task)
        path = f"{prefix}/{max(self._attempts(prefix), default=0) + 1:03d}"
        folder = self._folder(path)
        token = f"{task.name}-{uuid.uuid4().hex[:12]}"
        record = JobRecord(
            platform=launcher.kind,
            name=task.name,
            token=token,
            work=task.work,
            arguments=task.arguments,
            after=task.after,
            folder=str(folder),
            created_at=datetime.now(UTC),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        script = launcher.render(task, str(folder), token).encode()
        if not blobs.create(f"{path}/{RECORD}", _text(record)):
            return None
        blobs.write(f"{path}/{SCRIPT}", script)
        if blobs.local_root is None or self.shared is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SCRIPT).write_bytes(script)
        return path, record

    def save(self, path: str, record: JobRecord) -> None:
        """Write what is known of a submission now."""
        self.layout.store.blobs.write(f"{path}/{RECORD}", _text(record))

    def folder_of(self, task: Task) -> str:
        """Return a folder of the kind that the next submission will have, for a dry run."""
        return str(self._folder(f"{self._prefix(task)}/001"))

    def beside(self, task: Task, name: str) -> str:
        """Return the path, for the job, of a file beside a task's submissions."""
        return str(self._folder(f"{self._prefix(task)}/{name}"))

    def keep(self, task: Task, name: str, text: str) -> None:
        """Write a file beside a task's submissions, where the job can read it."""
        path = f"{self._prefix(task)}/{name}"
        self.layout.store.write_text(path, text)
        target = self._folder(path)
        if self.layout.store.blobs.local_root is None or self.shared is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def _attempts(self, prefix: str) -> list[int]:
        return sorted(int(name) for name in self.layout.store.blobs.folders(prefix) if name.isdigit())

    def _prefix(self, task: Task) -> str:
        return f"{self.layout.run}/jobs/{task.name}-{task.work[:12]}"

    def _folder(self, path: str) -> Path:
        if self.shared is not None:
            return Path(os.path.abspath(Path(self.shared).expanduser())) / path
        root = self.layout.store.blobs.local_root
        if root is None:
            raise ConfigError(
                "the run is in a bucket; logs and exit codes of jobs need a folder that the cluster shares",
                where="launch.slurm.folder",
                mend="set launch.slurm.folder to one",
            )
        return root / path


def _text(record: JobRecord) -> bytes:
    return (record.model_dump_json(indent=2) + "\n").encode()


def _parsed(data: bytes, where: str) -> JobRecord:
    try:
        return JobRecord.model_validate_json(data)
    except ValidationError as error:
        raise ArtifactError(
            "the record of a job cannot be read", where=where, mend="delete its folder, if no such job runs"
        ) from error
