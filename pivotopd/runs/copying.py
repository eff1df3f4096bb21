"""Copy a run to another root, folder or bucket: files first, each verified, then its manifest, create-only.

A run's name is part of what its digests name, so a copy keeps it. A copy that was broken off goes on: what
has its manifest is whole, and a file that arrived before is read again and not sent again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pivotopd.artifacts import MANIFEST, Artifact, RunLayout, Store
from pivotopd.blobs import Blobs
from pivotopd.errors import ArtifactError, ConfigError, StorageError
from pivotopd.manifest import PRUNED, File, Part
from pivotopd.progress import Progress, silent
from pivotopd.run_identity import identity_of
from pivotopd.runs.contents import artifacts_of, stored_files
from pivotopd.runs.forks import FORK
from pivotopd.runs.verify import hash_of


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did.

    Attributes:
        artifacts: Artifacts copied.
        already: Artifacts that were there.
        files: Files sent.
        bytes: Their size.
    """

    artifacts: int
    already: int
    files: int
    bytes: int


def copy_run(layout: RunLayout, target_root: str, progress: Progress = silent) -> Copied:
    """Copy a run, and the shared warm starts behind it, to another root.

    Args:
        layout: The run.
        target_root: Root of the copy; the run's name stays.
        progress: Told the artifacts done.

    Raises:
        ArtifactError: There is no run, or one of its files is missing or damaged.
        ConfigError: Source and target are one, or the target holds another run of this name.
        StorageError: A store cannot be read or written.
    """
    source, target = layout.store, Store(target_root)
    copy = RunLayout(target_root, layout.run)
    if source.join("") == target.join(""):
        raise ConfigError("a run cannot be copied onto itself", where=layout.uri, mend="give another root")
    config = source.read_text(layout.config)
    if config is None:
        raise ArtifactError("there is no run at this address", where=layout.uri, mend="give ROOT/NAME")
    _refuse_another(config, target.read_text(copy.config), copy)
    artifacts = artifacts_of(layout)
    done = already = files = sent = 0
    for artifact in artifacts:
        parent = artifact.path.rpartition("/")[0]
        if target.open_artifact(parent, artifact.digest) is None:
            new = _copy_artifact(artifact, target)
            files, sent, done = files + len(new), sent + sum(file.bytes for file in new), done + 1
        else:
            already += 1
        progress("artifacts", done + already, len(artifacts))
    fork = source.read_text(f"{layout.run}/{FORK}")
    if fork is not None:
        target.write_text(f"{copy.run}/{FORK}", fork)
    templates = source.read_text(layout.templates)
    if templates is not None:
        target.write_text(copy.templates, templates)
    target.write_text(copy.config, config)  # last: what holds it counts as a run
    return Copied(done, already, files, sent)


def _refuse_another(config: str, there: str | None, copy: RunLayout) -> None:
    """Refuse to mix two runs of one name: their configurations differ in what a run is."""
    if there is not None and _identity(config) != _identity(there):
        raise ConfigError(
            f"another run named {copy.run!r} lies there",
            where=copy.uri,
            mend="copy to another root; a run cannot be renamed",
        )


def _identity(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    return identity_of(loaded) if isinstance(loaded, Mapping) else {}


def _copy_artifact(artifact: Artifact, target: Store) -> list[Part | File]:
    """Copy an artifact's files and then its manifest; return the files that were sent."""
    marker = artifact.pruned()
    taken = set(marker.files) if marker else set()
    there = {entry.path: entry.bytes for entry in target.blobs.entries(artifact.path)}
    sent: list[Part | File] = []
    for stored in stored_files(artifact):
        path = f"{artifact.path}/{stored.path}"
        if stored.path in taken:
            continue
        if there.get(path) == stored.bytes and hash_of(target.blobs, path, stored.bytes) == stored.sha256:
            continue
        _copy_file(artifact, stored, target.blobs)
        sent.append(stored)
    if marker is not None:
        target.blobs.write(f"{artifact.path}/{PRUNED}", marker.to_json().encode())
    target.blobs.create(f"{artifact.path}/{MANIFEST}", artifact.manifest.to_json().encode())
    return sent


def _copy_file(artifact: Artifact, stored: Part | File, target: Blobs) -> None:
    """Copy one file by way of a local temporary one; what arrived is read again before it counts."""
    path = f"{artifact.path}/{stored.path}"
    source = artifact.store.blobs
    hasher = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="pivotopd-copy-") as folder:
        local = Path(folder) / "file"
        try:
            with local.open("wb") as stream:
                for chunk in source.chunks(path, stored.bytes):
                    hasher.update(chunk)
                    stream.write(chunk)
        except FileNotFoundError as error:
            raise ArtifactError(
                "a file is missing", where=source.join(path), mend="`pivotopd runs verify` lists all"
            ) from error
        if hasher.hexdigest() != stored.sha256:
            raise ArtifactError(
                "the file's hash is not its manifest's",
                where=source.join(path),
                mend="`pivotopd runs verify` lists all that is damaged",
            )
        target.place(local, path)
    if hash_of(target, path, stored.bytes) != stored.sha256:
        raise StorageError(
            "the copy reads back otherwise", where=target.join(path), mend="check the disk or the store"
        )
