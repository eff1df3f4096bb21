"""Reread what manifests promise: every file's size and hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pivotopd.artifacts import MANIFEST, Artifact, RunLayout
from pivotopd.blobs import Blobs
from pivotopd.errors import ArtifactError
from pivotopd.manifest import File, Part
from pivotopd.progress import Progress, silent
from pivotopd.runs.contents import shared_by, stored_files
from pivotopd.runs.forks import shared_folders

_MANIFEST_PATH: Final = re.compile(r"(?P<prefix>.+)/(?P<digest>[0-9a-f]{64})/manifest\.json")


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not what its manifest says, or a manifest that is none.

    Attributes:
        where: Address.
        what: What is wrong.
    """

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was reread.

    Attributes:
        artifacts: Number of manifests.
        files: Number of files read and found right.
        bytes: Their size.
        pruned: Number of files that a pruning took out.
        problems: What is wrong.
    """

    artifacts: int
    files: int
    bytes: int
    pruned: int
    problems: tuple[Problem, ...]


def hash_of(blobs: Blobs, path: str, size_bytes: int) -> str:
    """Return the sha256 (hex) of a stored file, read in pieces.

    Raises:
        FileNotFoundError: It does not exist.
        StorageError: The store cannot be read.
    """
    hasher = hashlib.sha256()
    for chunk in blobs.chunks(path, size_bytes):
        hasher.update(chunk)
    return hasher.hexdigest()


def verify_run(layout: RunLayout, progress: Progress = silent) -> Verified:
    """Reread every file that a run's manifests name, and of what it shares with others.

    Raises:
        ArtifactError: There is nothing at the address.
        StorageError: The store cannot be read; what is missing or damaged is a problem, no error.
    """
    store = layout.store
    sizes = {entry.path: entry.bytes for entry in store.blobs.entries(layout.run)}
    if not sizes:
        raise ArtifactError("there is no run at this address", where=layout.uri, mend="give ROOT/NAME")
    artifacts, problems = _artifacts(layout, _manifests(sizes))
    forked, missing = _artifacts(layout, shared_folders(layout))
    problems += missing
    shared = [*shared_by(layout, artifacts), *forked]
    for artifact in shared:
        sizes |= {entry.path: entry.bytes for entry in store.blobs.entries(artifact.path)}
    artifacts += shared
    total = sum(len(stored_files(artifact)) for artifact in artifacts)
    files = read_bytes = pruned = done = 0
    for artifact in artifacts:
        marker = artifact.pruned()
        taken = set(marker.files) if marker else set()
        for stored in stored_files(artifact):
            path = f"{artifact.path}/{stored.path}"
            done += 1
            progress("files", done, total)
            if path not in sizes and stored.path in taken:
                pruned += 1
                continue
            wrong = _wrong(store.blobs, path, sizes.get(path), stored)
            if wrong is None:
                files, read_bytes = files + 1, read_bytes + stored.bytes
            else:
                problems.append(Problem(store.join(path), wrong))
    return Verified(len(artifacts), files, read_bytes, pruned, tuple(problems))


def _artifacts(
    layout: RunLayout, manifests: Iterable[tuple[str, str]]
) -> tuple[list[Artifact], list[Problem]]:
    """Return the artifacts of manifests (prefix, digest), and the manifests that cannot be read."""
    artifacts: list[Artifact] = []
    problems: list[Problem] = []
    for prefix, digest in manifests:
        try:
            artifacts.append(layout.store.require(prefix, digest))
        except ArtifactError as error:
            problems.append(Problem(layout.store.join(f"{prefix}/{digest}/{MANIFEST}"), error.what))
    return artifacts, problems


def _manifests(paths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for path in paths:
        match = _MANIFEST_PATH.fullmatch(path)
        if match is not None:
            yield match["prefix"], match["digest"]


def _wrong(blobs: Blobs, path: str, size_bytes: int | None, stored: Part | File) -> str | None:
    """Return what is wrong with a stored file, or None."""
    if size_bytes is None:
        return "it is missing"
    if size_bytes != stored.bytes:
        return f"it has {size_bytes} bytes, its manifest says {stored.bytes}"
    try:
        digest = hash_of(blobs, path, stored.bytes)
    except FileNotFoundError:
        return "it vanished while it was read"
    return None if digest == stored.sha256 else "its hash is not its manifest's"
