"""What belongs to a run: its own artifacts, and the shared ones that they were made from."""

from __future__ import annotations

from collections.abc import Iterator

from pivotopd.artifacts import Artifact, RunLayout, list_artifacts
from pivotopd.manifest import File, Part
from pivotopd.runs.forks import shared_artifacts


def stored_files(artifact: Artifact) -> tuple[Part | File, ...]:
    """Return all files that an artifact's manifest names."""
    return (*artifact.manifest.parts, *artifact.manifest.files)


def artifacts_of(layout: RunLayout) -> list[Artifact]:
    """Return a run's artifacts, those a fork shares, and warm starts that they name, by time of making.

    Raises:
        ArtifactError: A manifest is damaged or of another format version.
        StorageError: The store cannot be read.
    """
    own = [*list_artifacts(layout.store, layout.run), *shared_artifacts(layout)]
    return sorted([*shared_by(layout, own), *own], key=lambda artifact: artifact.manifest.created_at)


def shared_by(layout: RunLayout, own: list[Artifact]) -> Iterator[Artifact]:
    """Yield the shared warm starts that artifacts name as inputs."""
    named = {digest for artifact in own for digest in artifact.manifest.inputs.values()}
    for digest in layout.store.blobs.folders(layout.warm_start):
        if digest in named:
            found = layout.store.open_artifact(layout.warm_start, digest)
            if found is not None:
                yield found
