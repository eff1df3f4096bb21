"""The store of artifacts: find finished work by its digest, publish new work atomically, read it with checks.

Layout below the root::

    RUN/config.yaml
    RUN/iterations/0003/<stage>/<digest>/   turns-00000-<hash>.parquet ... manifest.json
    RUN/skills/<digest>/                    skills-00000-<hash>.parquet ...  manifest.json
    RUN/checkpoints/<digest>/               content-<hash>/...             manifest.json
    shared/warm_start/<digest>/             content-<hash>/...             manifest.json
    comparisons/NAME/                       reports over runs: no artifacts, made anew by each command

An artifact exists once its manifest does. Parts go first and carry a piece of their own hash in their name,
so two writers of one digest write either the same bytes or other names, and what a killed writer left is
overwritten with itself or ignored. The manifest is create-only: the second of two writers reads the first's.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pivotopd.blobs import Blobs, intact, sha256_of
from pivotopd.errors import ArtifactError, StorageError
from pivotopd.manifest import PRUNED, File, Manifest, Part, Pruned
from pivotopd.records import R, check_schema, from_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pivotopd.publish import ArtifactWriter

MANIFEST = "manifest.json"
SHARED = "shared"
COMPARISONS = "comparisons"
RESERVED = frozenset({SHARED, COMPARISONS})
"""Folders of a root that are no runs."""
_DIGEST_FOLDER = re.compile(r"(?:^|/)([0-9a-f]{64})/manifest\.json$")
_RERUN = "delete the artifact's folder and rerun the stage that wrote it"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Where a run's things lie; prefixes are relative to the store's root."""

    root: str
    run: str

    @classmethod
    def from_uri(cls, uri: str) -> RunLayout:
        """Split ``ROOT/RUN`` at its last slash.

        Raises:
            ArtifactError: A file lies there, or where the root would be.
        """
        root, _, run = uri.rstrip("/").rpartition("/")
        layout = cls(root=root or ("/" if uri.startswith("/") else "."), run=run)
        local = layout.store.blobs.local_root
        if local is not None and ((local / run).is_file() or local.is_file()):
            raise ArtifactError("this is a file, not a run", where=uri, mend="give ROOT/NAME: a run's folder")
        return layout

    @property
    def store(self) -> Store:
        """The store at the root."""
        return Store(self.root)

    @property
    def uri(self) -> str:
        """Address of the run."""
        return self.store.join(self.run)

    @property
    def config(self) -> str:
        """Path of the resolved configuration."""
        return f"{self.run}/config.yaml"

    @property
    def templates(self) -> str:
        """Path of what was found of the models' chat templates."""
        return f"{self.run}/templates.json"

    def stage(self, iteration: int, stage: str) -> str:
        """Prefix of a stage's artifacts in an iteration."""
        return f"{self.run}/iterations/{iteration:04d}/{stage}"

    @property
    def checkpoints(self) -> str:
        """Prefix of the run's checkpoints."""
        return f"{self.run}/checkpoints"

    @property
    def skills(self) -> str:
        """Prefix of the run's skill banks."""
        return f"{self.run}/skills"

    @property
    def warm_start(self) -> str:
        """Prefix of the warm starts, which runs under one root share."""
        return f"{SHARED}/warm_start"


@dataclass(frozen=True, slots=True)
class Store:
    """Artifacts and small texts under one root: a local folder or an fsspec URI."""

    uri: str

    @property
    def blobs(self) -> Blobs:
        """The bytes below."""
        return Blobs(self.uri)

    def join(self, path: str) -> str:
        """Return the address of a path below the root."""
        return self.blobs.join(path)

    def open_artifact(self, prefix: str, digest: str) -> Artifact | None:
        """Return the artifact of a digest, or None only where its manifest truly does not exist.

        Raises:
            ArtifactError: The manifest is damaged, of another format version, or of another digest.
            StorageError: The store cannot be read.
        """
        folder = f"{prefix}/{digest}"
        text = self.blobs.read(f"{folder}/{MANIFEST}")
        if text is None:
            return None
        where = self.join(f"{folder}/{MANIFEST}")
        manifest = Manifest.from_json(text, where)
        if manifest.digest != digest:
            raise ArtifactError(
                f"the manifest is of another digest: {manifest.digest}", where=where, mend=_RERUN
            )
        return Artifact(self, folder, manifest)

    def require(self, prefix: str, digest: str) -> Artifact:
        """Like :meth:`open_artifact`, but a missing artifact is an :class:`ArtifactError`."""
        found = self.open_artifact(prefix, digest)
        if found is None:
            raise ArtifactError(
                "the artifact does not exist",
                where=self.join(f"{prefix}/{digest}"),
                mend="run the stage that writes it first; other code or settings give other digests",
            )
        return found

    def begin(
        self,
        prefix: str,
        digest: str,
        *,
        stage: str,
        run: str,
        iteration: int | None,
        code: str,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
    ) -> ArtifactWriter:
        """Start writing an artifact; use the writer as a context, so that a failure leaves nothing behind."""
        from pivotopd.publish import ArtifactWriter, Header  # noqa: PLC0415 - the writer returns artifacts

        header = Header(stage, digest, run, iteration, code, dict(config), dict(inputs))
        return ArtifactWriter(self, prefix, header)

    def read_text(self, path: str) -> str | None:
        """Return a small text such as RUN/config.yaml, or None where it does not exist.

        Raises:
            ArtifactError: It is not UTF-8.
        """
        data = self.blobs.read(path)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise ArtifactError(
                f"the file is damaged: {error}", where=self.join(path), mend="restore the file"
            ) from error

    def write_text(self, path: str, text: str) -> None:
        """Write a small text whole, replacing what was there."""
        self.blobs.write(path, text.encode())

    def create_text(self, path: str, text: str) -> bool:
        """Write a small text unless one is there; return whether it was written."""
        return self.blobs.create(path, text.encode())


@dataclass(frozen=True)
class Artifact:
    """A published artifact; every read checks size and hash, and a table's footer, schema and rows."""

    store: Store
    path: str
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Digest of the work."""
        return self.manifest.digest

    @property
    def uri(self) -> str:
        """Address of the artifact's folder."""
        return self.store.join(self.path)

    def pruned(self) -> Pruned | None:
        """Return what a pruning took out of the artifact, or None where nothing was.

        Raises:
            ArtifactError: The marker is damaged.
            StorageError: The store cannot be read.
        """
        path = f"{self.path}/{PRUNED}"
        text = self.store.blobs.read(path)
        return None if text is None else Pruned.from_json(text, self.store.join(path))

    def rows(self, record: type[R]) -> list[R]:
        """Return all rows of a table, in the order they were written.

        Raises:
            ArtifactError: The table or a part is missing, truncated, damaged, or of another schema.
            StorageError: The store cannot be read.
        """
        parts = [part for part in self.manifest.parts if part.table == record.TABLE]
        if not parts:
            tables = sorted({part.table for part in self.manifest.parts})
            raise ArtifactError(
                f"the artifact of stage {self.manifest.stage!r} has no table {record.TABLE!r}, only {tables}",
                where=self.uri,
                mend="pass the artifact of the stage that writes this table",
            )
        return [
            row for part in parts for row in from_table(record, self._table(record, part), self._at(part))
        ]

    def _table(self, record: type[Any], part: Part) -> pa.Table:
        where = self._at(part)
        if part.version != record.VERSION:
            raise ArtifactError(
                f"table {record.TABLE} has schema version {part.version}, "
                f"this program reads {record.VERSION}",
                where=where,
                mend="use the pivotopd version that wrote it, or rerun the stage with this one",
            )
        try:
            # Without Arrow's threads: one that lets go of our bytes while Python ends aborts the process.
            file = pq.ParquetFile(io.BytesIO(self._bytes(part)), pre_buffer=False)
            check_schema(record, file.schema_arrow, where)
            table = file.read(use_threads=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise ArtifactError(f"not a readable Parquet file: {error}", where=where, mend=_RERUN) from error
        if table.num_rows != part.rows:
            raise ArtifactError(
                f"the part has {table.num_rows} rows, its manifest says {part.rows}", where=where, mend=_RERUN
            )
        return table

    def log(self, name: str) -> str:
        """Return a log file's text, such as ``metrics.jsonl``."""
        for file in self.manifest.files:
            if file.kind == "log" and file.name == name:
                return self._bytes(file).decode()
        logs = sorted(file.name for file in self.manifest.files if file.kind == "log")
        raise ArtifactError(f"the artifact has no log {name!r}, only {logs}", where=self.uri)

    def local_path(self) -> Path:
        """Return a local folder with the content files (a checkpoint), verified.

        The artifact's own folder where the store is local; else a download, kept under
        ``$XDG_CACHE_HOME/pivotopd`` by digest and content, and used again.

        Raises:
            ArtifactError: A file is missing or damaged, or the artifact has no content files.
            StorageError: The store cannot be read, or the download not written.
        """
        files = [file for file in self.manifest.files if file.kind == "content"]
        if not files:
            raise ArtifactError(
                f"the artifact of stage {self.manifest.stage!r} has no files", where=self.uri, mend=_RERUN
            )
        root = self.store.blobs.local_root
        folder = self._cache if root is None else root / self.path
        for file in files:
            if root is None and not intact(folder / file.path, file.bytes, file.sha256):
                self._fetch(file, folder / file.path)
            self._check_local(folder / file.path, file)
        return folder / files[0].path.partition("/")[0]

    @cached_property
    def _cache(self) -> Path:
        return cache_folder() / self.digest / self.manifest.content_digest

    def _fetch(self, file: File, target: Path) -> None:
        """Download one file into the cache, whole or not at all."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".download-")
            os.close(descriptor)
            temporary = Path(name)
            try:
                if not self.store.blobs.download(f"{self.path}/{file.path}", temporary):
                    raise self._gone("a file is missing", self._at(file))
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot cache a download: {error.strerror}",
                where=str(target),
                mend="free some space, or set XDG_CACHE_HOME to another folder",
            ) from error

    def _check_local(self, path: Path, file: File) -> None:
        if not path.is_file():
            raise self._gone("a file is missing", str(path))
        size = path.stat().st_size
        if size != file.bytes:
            raise ArtifactError(
                f"the file has {size} bytes, its manifest says {file.bytes}", where=str(path), mend=_RERUN
            )
        if sha256_of(path) != file.sha256:
            raise ArtifactError("the file's hash is not its manifest's", where=str(path), mend=_RERUN)

    def _bytes(self, stored: Part | File) -> bytes:
        """Read a stored file whole and compare size and hash."""
        data = self.store.blobs.read(f"{self.path}/{stored.path}")
        where = self._at(stored)
        if data is None:
            raise self._gone("a part is missing", where)
        if len(data) != stored.bytes:
            raise ArtifactError(
                f"the part has {len(data)} bytes, its manifest says {stored.bytes}", where=where, mend=_RERUN
            )
        if hashlib.sha256(data).hexdigest() != stored.sha256:
            raise ArtifactError("the part's hash is not its manifest's", where=where, mend=_RERUN)
        return data

    def _gone(self, what: str, where: str) -> ArtifactError:
        """Return the error of a file that is not there, which says so where it was pruned."""
        pruned = self.pruned()
        if pruned is None:
            return ArtifactError(what, where=where, mend=_RERUN)
        return ArtifactError(
            f"{what}: it was pruned on {pruned.pruned_at:%Y-%m-%d}", where=where, mend=_RERUN
        )

    def _at(self, stored: Part | File) -> str:
        return self.store.join(f"{self.path}/{stored.path}")


def cache_folder() -> Path:
    """Return the user's folder for what can be fetched again: ``$XDG_CACHE_HOME/pivotopd``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pivotopd"


def artifact_at(uri: str) -> Artifact:
    """Return the artifact at an address: its folder, whose name is its digest.

    Raises:
        ArtifactError: There is none.
    """
    folder, _, digest = uri.rstrip("/").rpartition("/")
    root, _, name = folder.rpartition("/")
    return Store(root or ("/" if uri.startswith("/") else ".")).require(name or ".", digest)


def content_folder(folder: Path) -> Path:
    """Return the model folder inside a local checkpoint's folder; any other folder as it is."""
    inside = sorted(folder.glob("content-*")) if (folder / MANIFEST).is_file() else []
    return inside[0] if len(inside) == 1 else folder


def list_artifacts(store: Store, prefix: str = "") -> Iterator[Artifact]:
    """Yield every published artifact below a prefix, by path; unfinished ones are not seen.

    Raises:
        ArtifactError: A manifest is damaged or of another format version.
    """
    for path in store.blobs.find(prefix):
        match = _DIGEST_FOLDER.search(path)
        if match is None:
            continue
        parent = path[: match.start(1)].rstrip("/")
        artifact = store.open_artifact(parent, match.group(1))
        if artifact is not None:
            yield artifact


def find_runs(root: str) -> list[RunLayout]:
    """Return the runs under a root, by name: its folders that hold a resolved configuration."""
    store = Store(root)
    layouts = [RunLayout(root, name) for name in store.blobs.folders() if name not in RESERVED]
    return [layout for layout in layouts if store.blobs.read(layout.config) is not None]
