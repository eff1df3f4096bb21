"""A fork: a run that begins with another run's artifacts, by reference.

``RUN/fork.json`` is written once, before anything else of the new run. It names the shared artifacts by their
digests, so other code or another configuration of the old run changes nothing of the new one, and a pruning
of the old run leaves them alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, ValidationError

from pivotopd.artifacts import Artifact, RunLayout
from pivotopd.errors import ArtifactError, ConfigError

FORK = "fork.json"
"""Name of the record in a run's folder."""
_CHECKPOINTS = "checkpoints"


class Shared(BaseModel):
    """One artifact of the old run that the new one takes as its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    iteration: int | None
    prefix: str
    digest: str


class Fork(BaseModel):
    """Where a run comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    """Name of the old run, under the same root."""
    iteration: int
    """First iteration that is the new run's own."""
    shared: tuple[Shared, ...]
    """What it takes over, in order."""

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the shared artifacts; a checkpoint has its update's."""
        return frozenset(one.digest for one in self.shared)


def fork_of(layout: RunLayout) -> Fork | None:
    """Return a run's fork record, or None where it is nobody's fork.

    Raises:
        ArtifactError: The record is damaged.
        StorageError: The store cannot be read.
    """
    text = layout.store.read_text(f"{layout.run}/{FORK}")
    if text is None:
        return None
    try:
        return Fork.model_validate_json(text)
    except ValidationError as error:
        raise ArtifactError(
            "the record of the fork is damaged",
            where=layout.store.join(f"{layout.run}/{FORK}"),
            mend="restore it, or fork the old run anew under another name",
        ) from error


def keep_fork(layout: RunLayout, fork: Fork) -> None:
    """Write a run's fork record; the same record again is fine.

    Raises:
        ConfigError: A run of this name is there already, and is not this fork.
        StorageError: The store cannot be written.
    """
    there = fork_of(layout)
    fresh = there is None and layout.store.read_text(layout.config) is None
    if fresh and layout.store.create_text(f"{layout.run}/{FORK}", fork.model_dump_json(indent=2) + "\n"):
        return
    if (there or fork_of(layout)) != fork:
        raise ConfigError(
            f"there is a run named {layout.run!r} already",
            where=layout.uri,
            mend="give another name; `pivotopd train --resume` goes on with that one",
        )


def shared_artifacts(layout: RunLayout) -> list[Artifact]:
    """Return the artifacts that a fork takes over, and the checkpoints of its updates.

    Raises:
        ArtifactError: One of them does not exist.
    """
    return [layout.store.require(prefix, digest) for prefix, digest in shared_folders(layout)]


def shared_folders(layout: RunLayout) -> Iterator[tuple[str, str]]:
    """Yield prefix and digest of what a fork takes over, checkpoints too; nothing of a run that is none.

    A warm start is left out: it lies in the folder that all runs share.
    """
    fork = fork_of(layout)
    for one in fork.shared if fork is not None else ():
        if one.prefix != layout.warm_start:
            yield one.prefix, one.digest
        if one.stage == "update":
            yield checkpoints_of(one.prefix), one.digest


def checkpoints_of(prefix: str) -> str:
    """Return where the checkpoints of the run lie to which an update's prefix belongs."""
    return f"{prefix.partition('/')[0]}/{_CHECKPOINTS}"
