"""Take the large files out of old iterations; manifests and metrics stay, so a run goes on as before.

An artifact is pruned by a marker, ``pruned.json``, and then the deletion of its tables and models. Its
manifest still says that the work is done, so nothing is done again.

*In use* are the artifacts of the kept iterations, everything that belongs to no iteration or is no part of
the loop (skills, diagnoses), and every unpruned artifact of another run under the root. What the manifest of
one of these names as an input is never removed, nor what the record of a fork says that it shares.
Evaluations of older iterations keep their files and hold nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pivotopd.artifacts import MANIFEST, RESERVED, Artifact, RunLayout, find_runs, list_artifacts
from pivotopd.blobs import Entry
from pivotopd.errors import ArtifactError
from pivotopd.manifest import PRUNED, Pruned
from pivotopd.runs.contents import stored_files
from pivotopd.runs.forks import fork_of

LOOP: Final = frozenset({"rollout", "label", "recover", "update"})
CHECKPOINT: Final = "checkpoint"
RESULTS: Final = frozenset({"evaluate", CHECKPOINT})
"""Stages of an iteration that are kept longer than its rows, and do not hold them."""
_IN_ARTIFACT: Final = re.compile(r"(?P<folder>.+/[0-9a-f]{64})/(?P<file>.+)")


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept.

    Attributes:
        iterations: Rows of this many iterations, counted back from the last one with an update.
        checkpoints: Policies of this many; None keeps all.
        leftover_hours: Age from which files that no manifest names are removed; None keeps them.
    """

    iterations: int
    checkpoints: int | None = None
    leftover_hours: float | None = 24.0


@dataclass(frozen=True, slots=True)
class Removal:
    """An artifact and its files that go.

    Attributes:
        artifact: The artifact; its manifest and logs stay.
        files: What goes.
    """

    artifact: Artifact
    files: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a retention removes.

    Attributes:
        removals: Artifacts that lose their files.
        held: Artifacts old enough to go that a manifest in use names.
        leftovers: Files that no manifest names.
    """

    removals: tuple[Removal, ...]
    held: tuple[Artifact, ...]
    leftovers: tuple[Entry, ...]

    @property
    def files(self) -> list[Entry]:
        """All files that go."""
        return [entry for removal in self.removals for entry in removal.files] + list(self.leftovers)


def plan_pruning(layout: RunLayout, retention: Retention) -> Pruning:
    """Say what a retention removes of a run; nothing is changed.

    Raises:
        ArtifactError: There is no run, or a manifest under the root is damaged: its inputs are unknown.
        StorageError: The store cannot be read.
    """
    if layout.store.read_text(layout.config) is None:
        raise ArtifactError("there is no run at this address", where=layout.uri, mend="give ROOT/NAME")
    entries = layout.store.blobs.entries(layout.run)
    artifacts = list(list_artifacts(layout.store, layout.run))
    updated = sorted(
        {one.manifest.iteration or 0 for one in artifacts if one.manifest.stage == "update"}, reverse=True
    )
    rows_from = _oldest_kept(updated, retention.iterations)
    policies_from = 0 if retention.checkpoints is None else _oldest_kept(updated, retention.checkpoints)
    old = [one for one in artifacts if _is_old(one, rows_from, policies_from)]
    going = {one.path for one in old}
    in_use = [one for one in artifacts if one.path not in going and not _holds_nothing(one, rows_from)]
    named = {digest for one in in_use for digest in one.manifest.inputs.values()} | _named_elsewhere(layout)
    there = {entry.path: entry for entry in entries}
    removals = [Removal(one, _files_of(one, there)) for one in old if one.digest not in named]
    return Pruning(
        tuple(removal for removal in removals if removal.files),
        tuple(one for one in old if one.digest in named),
        _leftovers(artifacts, entries, retention.leftover_hours),
    )


def prune(layout: RunLayout, pruning: Pruning) -> None:
    """Remove what was planned; each artifact is marked before its files go, so a broken-off one can go on.

    Raises:
        StorageError: The store does not delete.
    """
    blobs = layout.store.blobs
    for removal in pruning.removals:
        folder = removal.artifact.path
        gone = tuple(entry.path.removeprefix(f"{folder}/") for entry in removal.files)
        before = removal.artifact.pruned()
        marker = Pruned(
            pruned_at=datetime.now(UTC), files=tuple(sorted({*gone, *(before.files if before else ())}))
        )
        blobs.write(f"{folder}/{PRUNED}", marker.to_json().encode())
        for name in sorted({path.partition("/")[0] for path in gone}):
            blobs.remove(f"{folder}/{name}")
    for entry in pruning.leftovers:
        blobs.remove(entry.path)


def _oldest_kept(updated: Sequence[int], count: int) -> int:
    """Return the first iteration that is kept, of those with an update, newest first."""
    return updated[count - 1] if len(updated) >= count else 0


def _is_old(artifact: Artifact, rows_from: int, policies_from: int) -> bool:
    stage, iteration = artifact.manifest.stage, artifact.manifest.iteration
    if iteration is None:
        return False
    return (stage in LOOP and iteration < rows_from) or (stage == CHECKPOINT and iteration < policies_from)


def _holds_nothing(artifact: Artifact, rows_from: int) -> bool:
    stage, iteration = artifact.manifest.stage, artifact.manifest.iteration
    return iteration is not None and stage in RESULTS and iteration < rows_from


def _named_elsewhere(layout: RunLayout) -> set[str]:
    """Return the digests that unpruned artifacts of the other runs under the root, and their forks, name."""
    named: set[str] = set()
    for other in find_runs(layout.root):
        if other.run == layout.run:
            continue
        for artifact in list_artifacts(other.store, other.run):
            if artifact.pruned() is None:
                named.update(artifact.manifest.inputs.values())
    for name in layout.store.blobs.folders():  # a fork that has just begun has its record and no more
        fork = None if name in {layout.run, *RESERVED} else fork_of(RunLayout(layout.root, name))
        if fork is not None:
            named.update(fork.digests)
    return named


def _files_of(artifact: Artifact, there: Mapping[str, Entry]) -> tuple[Entry, ...]:
    """Return an artifact's tables and content files that are still there; logs stay."""
    logs = {file.path for file in artifact.manifest.files if file.kind == "log"}
    paths = [f"{artifact.path}/{stored.path}" for stored in stored_files(artifact) if stored.path not in logs]
    return tuple(there[path] for path in paths if path in there)


def _leftovers(
    artifacts: Sequence[Artifact], entries: Sequence[Entry], hours: float | None
) -> tuple[Entry, ...]:
    """Return old files in artifacts' folders that no manifest names: what killed or beaten writers left."""
    if hours is None:
        return ()
    before = datetime.now(UTC) - timedelta(hours=hours)
    listed = {f"{one.path}/{stored.path}" for one in artifacts for stored in stored_files(one)}
    return tuple(
        entry
        for entry in entries
        if (match := _IN_ARTIFACT.fullmatch(entry.path)) is not None
        and match["file"] not in (MANIFEST, PRUNED)
        and entry.path not in listed
        and entry.changed_at is not None
        and entry.changed_at < before
    )
