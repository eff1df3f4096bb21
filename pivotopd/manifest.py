"""What an artifact is: its digest, its parts, what it was made of, and the exact counts of its making.

Two digests: the *digest* names the work (stage, configuration that it reads, code, inputs, schema versions,
seed) before it is done, and finds finished work again; the *content digest* names the result (hashes of parts
and files, counts) and is equal whenever the same rows came out. Times, log files, and counts that depend on
batch sizes or caches stay out of both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from pivotopd.errors import ArtifactError

FORMAT_VERSION = 1
PRUNED = "pruned.json"
"""Name of the marker beside a manifest whose large files were removed."""


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def stage_digest(
    stage: str,
    *,
    config: Mapping[str, Any],
    code: str,
    inputs: Mapping[str, str],
    schema_versions: Mapping[str, int],
    seed: int | None,
) -> str:
    """Return the digest (sha256, hex) of a piece of work before it is done.

    Args:
        stage: Name of the stage.
        config: What the stage reads of the configuration, as JSON values.
        code: Digest of the stage's code.
        inputs: Role to digest of each input artifact or checkpoint.
        schema_versions: Table to version of each table that is read or written.
        seed: The run's seed, or None where the work draws nothing.
    """
    work = {
        "format": FORMAT_VERSION,
        "stage": stage,
        "config": dict(config),
        "code": code,
        "inputs": dict(inputs),
        "schema_versions": dict(schema_versions),
        "seed": seed,
    }
    return hashlib.sha256(canonical_json(work).encode()).hexdigest()


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Stored(_Strict):
    path: str
    """Path relative to the manifest's folder; it holds a piece of the content's hash."""
    bytes: int
    """Size in bytes."""
    sha256: str
    """Hash of the bytes, hex."""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        if value.startswith("/") or ".." in value.split("/") or "\\" in value or not value:
            raise ValueError(f"{value!r} leaves the artifact's folder")
        return value


class Part(_Stored):
    """One Parquet file of a table."""

    table: str
    """Name of the table."""
    version: int
    """Schema version of the table."""
    rows: int
    """Number of rows."""


class File(_Stored):
    """One file that is not a table."""

    name: str
    """Name inside the artifact: relative path in a checkpoint folder, or the log's file name."""
    kind: Literal["content", "log"] = "content"
    """Logs (metrics, times) stay out of the content digest."""


class Manifest(_Strict):
    """The record that makes an artifact exist; written last, create-only, never changed."""

    format_version: int = FORMAT_VERSION
    """Version of this record's form."""
    stage: str
    """Stage that made it."""
    digest: str
    """Digest of the work; also the folder's name."""
    content_digest: str
    """Digest of the result; equal for equal parts, files and counts that do not vary."""
    run: str
    """Name of the run, or ``shared``."""
    iteration: int | None
    """Training iteration, from 0; null outside the loop."""
    created_at: datetime
    """When it was published, UTC."""
    code: str
    """Digest of the stage's code."""
    config: dict[str, Any]
    """What the stage read of the configuration."""
    inputs: dict[str, str]
    """Role to digest of each input."""
    parts: tuple[Part, ...] = ()
    """Parquet files, in row order within a table."""
    files: tuple[File, ...] = ()
    """Other files."""
    counts: dict[str, int] = {}
    """Exact ledger of the work: steps, tokens, calls."""
    varying: tuple[str, ...] = ()
    """Names of the counts that also depend on batch sizes, caches or the process, such as padding."""
    seconds: dict[str, float] = {}
    """Wall time of the phases."""
    notes: dict[str, str] = {}
    """Facts worth keeping, such as the digest of the policy's weights."""

    def to_json(self) -> str:
        """Return the text that is stored."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """Read a stored manifest.

        Raises:
            ArtifactError: It is not a manifest, is of another format version, or contradicts itself.
        """
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(
                "the manifest is not JSON", where=where, mend="delete the folder, rerun the stage"
            ) from error
        version = raw.get("format_version") if isinstance(raw, dict) else None
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"the manifest has format version {version}, this program reads {FORMAT_VERSION}",
                where=where,
                mend="use the pivotopd version that wrote it",
            )
        try:
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise ArtifactError(
                f"the manifest is damaged at {place!r}: {problem['msg']}",
                where=where,
                mend="delete the folder, rerun the stage",
            ) from error
        if manifest.content_digest != content_digest(
            manifest.parts, manifest.files, manifest.counts, manifest.varying
        ):
            raise ArtifactError(
                "the manifest contradicts its own content digest",
                where=where,
                mend="it was edited or damaged: delete the folder, rerun the stage",
            )
        return manifest


class Pruned(_Strict):
    """What was taken out of an artifact after its time; lies beside the manifest, which stays as it is."""

    format_version: int = FORMAT_VERSION
    """Version of this record's form."""
    pruned_at: datetime
    """When, UTC."""
    files: tuple[str, ...]
    """Paths, relative to the folder, of what was removed."""

    def to_json(self) -> str:
        """Return the text that is stored."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Pruned:
        """Read a stored marker; ArtifactError where it is none."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ArtifactError(
                "the marker of a pruning is damaged", where=where, mend="delete it, and prune again"
            ) from error


def content_digest(
    parts: Sequence[Part], files: Sequence[File], counts: Mapping[str, int], varying: Collection[str] = ()
) -> str:
    """Return the digest (sha256, hex) of a result: parts, content files, counts that do not vary."""
    content = {
        "parts": [[part.table, part.version, part.rows, part.sha256] for part in parts],
        "files": sorted([file.name, file.sha256] for file in files if file.kind == "content"),
        "counts": {name: value for name, value in counts.items() if name not in varying},
    }
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
