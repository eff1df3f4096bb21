"""The writing side of the store: parts first, the manifest last and create-only.

A writer's unfinished files lie in a hidden attempt folder (local) or a temporary folder (remote). Leaving the
writer without publishing removes them; what a killed process of this host left is removed by the next writer.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pivotopd.blobs import attempt_name, intact, sha256_of, storage_errors, sweep, sync
from pivotopd.errors import StorageError
from pivotopd.ledger import Counts, manifest_counts
from pivotopd.manifest import File, Manifest, Part, content_digest
from pivotopd.object_store import NO_SPACE
from pivotopd.records import R, to_table

if TYPE_CHECKING:
    from pivotopd.artifacts import Artifact, Store

ROWS_PER_PART = 65_536
HASH_CHARACTERS = 16
ATTEMPTS = 100
PROBE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """What a manifest says before the work is done; fields as in :class:`Manifest`."""

    stage: str
    digest: str
    run: str
    iteration: int | None
    code: str
    config: dict[str, Any]
    inputs: dict[str, str]


class ArtifactWriter:
    """Writes one artifact.

    Use it as a context::

        with store.begin(prefix, digest, ...) as writer:
            writer.write_rows(Turn, turns)
            artifact = writer.publish(counts={"turns": len(turns)})

    Every method raises :class:`StorageError` where the store does not take the bytes (disk full, permission,
    connection); nothing is published then.
    """

    def __init__(self, store: Store, prefix: str, header: Header) -> None:
        self._store, self._prefix, self._header = store, prefix, header
        self._path = f"{prefix}/{header.digest}"
        self._parts: list[Part] = []
        self._files: list[File] = []
        self._published = False
        root = store.blobs.local_root
        self._local = None if root is None else root / self._path
        self._attempt: Path | None = None

    def __enter__(self) -> Self:
        if self._local is not None:
            sweep(self._local)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()

    def write_rows(self, record: type[R], rows: Iterable[R]) -> None:
        """Write rows of a table, in order, after those already written; no rows still make a (empty) part.

        The bytes depend on the rows and the pyarrow version alone.

        Raises:
            ArtifactError: A row does not fit the schema.
        """
        table = to_table(record, rows)
        for start in range(0, max(table.num_rows, 1), ROWS_PER_PART):
            self._write_part(record, table.slice(start, ROWS_PER_PART))

    def _write_part(self, record: type[Any], table: pa.Table) -> None:
        sink = io.BytesIO()
        pq.write_table(
            table.combine_chunks(),
            sink,
            compression="zstd",
            version="2.6",
            use_dictionary=_with_dictionary(table.schema),
        )
        data = sink.getvalue()
        digest = hashlib.sha256(data).hexdigest()
        index = sum(part.table == record.TABLE for part in self._parts)
        name = f"{record.TABLE}-{index:05d}-{digest[:HASH_CHARACTERS]}.parquet"
        self._store.blobs.write(f"{self._path}/{name}", data)
        self._parts.append(
            Part(
                path=name,
                bytes=len(data),
                sha256=digest,
                table=record.TABLE,
                version=record.VERSION,
                rows=table.num_rows,
            )
        )

    def write_log(self, name: str, text: str) -> None:
        """Write a log file such as ``metrics.jsonl``; it stays out of the content digest."""
        data = text.encode()
        digest = hashlib.sha256(data).hexdigest()
        stem, dot, suffix = name.rpartition(".")
        path = f"{stem or suffix}-{digest[:HASH_CHARACTERS]}{dot}{suffix if dot else ''}"
        self._store.blobs.write(f"{self._path}/{path}", data)
        self._files.append(File(path=path, bytes=len(data), sha256=digest, name=name, kind="log"))

    @contextmanager
    def local_folder(self) -> Iterator[Path]:
        """Yield an empty local folder; what it holds at the end becomes the artifact's content files.

        At most one folder an artifact. Locally the folder lies on the store's filesystem and is renamed into
        place; elsewhere its files are uploaded.
        """
        if any(file.kind == "content" for file in self._files):
            raise ValueError("an artifact takes one folder of files")
        where = self._store.join(self._path)
        try:
            with storage_errors("write", where):
                folder = self._make_attempt() / "content"
                folder.mkdir()
        except FileNotFoundError as error:
            raise StorageError(f"cannot write: {error}", where=where) from error
        with _full_disk(folder):
            yield folder
        self._keep_folder(folder)

    def _keep_folder(self, folder: Path) -> None:
        """Hash the files of a finished folder and move it to its content-addressed name."""
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        named = [(path.relative_to(folder).as_posix(), path) for path in found]
        hashes = {name: sha256_of(path) for name, path in named}
        listing = "\n".join(f"{value} {name}" for name, value in hashes.items())
        target = f"content-{hashlib.sha256(listing.encode()).hexdigest()[:HASH_CHARACTERS]}"
        files = [
            File(path=f"{target}/{name}", bytes=path.stat().st_size, sha256=hashes[name], name=name)
            for name, path in named
        ]
        if self._local is None:
            for name, path in named:
                self._store.blobs.upload(path, f"{self._path}/{target}/{name}")
        else:
            with storage_errors("write", self._store.join(f"{self._path}/{target}")):
                for _, path in named:
                    sync(path)
                for parent in {path.parent for _, path in named}:
                    sync(parent)
                self._move_in(folder, self._local / target, files)
        self._files.extend(files)

    def _move_in(self, folder: Path, target: Path, files: Sequence[File]) -> None:
        """Rename a folder to its name; an intact one there stays, since another writer may count on it."""
        for _ in range(ATTEMPTS):
            try:
                folder.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
                if all(intact(target.parent / file.path, file.bytes, file.sha256) for file in files):
                    return
                with suppress(FileNotFoundError):
                    target.rename(self._make_attempt() / f"damaged-{uuid.uuid4().hex[:12]}")
            else:
                sync(target.parent)
                return
        raise StorageError(
            "other writers keep damaging the folder", where=str(target), mend="run the stage again, alone"
        )

    def publish(
        self,
        *,
        counts: Mapping[str, int],
        spent: Counts | None = None,
        seconds: Mapping[str, float] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> Artifact:
        """Write the manifest unless one exists, and return the artifact that then exists.

        Of two writers of one digest the first one's artifact is returned to both.

        Args:
            counts: What the stage alone counts; part of the content digest.
            spent: What the work used; the bytes of this artifact are added.
            seconds: Wall time of the phases.
            notes: Facts worth keeping.
        """
        if self._published:
            raise ValueError("the artifact is already published")
        written = sum(stored.bytes for stored in (*self._parts, *self._files))
        listed, varying = manifest_counts(
            counts, None if spent is None else spent + Counts(bytes_written=written)
        )
        manifest = Manifest(
            **asdict(self._header),
            content_digest=content_digest(self._parts, self._files, listed, varying),
            created_at=datetime.now(UTC),
            parts=tuple(self._parts),
            files=tuple(self._files),
            counts=listed,
            varying=varying,
            seconds=dict(seconds or {}),
            notes=dict(notes or {}),
        )
        won = self._store.blobs.create(f"{self._path}/manifest.json", manifest.to_json().encode())
        self._published = True
        artifact = self._store.open_artifact(self._prefix, self._header.digest)
        if artifact is None:
            raise StorageError(
                "the manifest vanished after it was written",
                where=self._store.join(self._path),
                mend="check that nobody deletes the folder, then run the stage again",
            )
        if not won:
            self._remove_orphans(artifact.manifest)
        self._discard()
        return artifact

    def _remove_orphans(self, winner: Manifest) -> None:
        """Delete what this writer wrote and the winner's manifest does not list."""
        listed = {stored.path.partition("/")[0] for stored in (*winner.parts, *winner.files)}
        own = {stored.path.partition("/")[0] for stored in (*self._parts, *self._files)}
        for name in own - listed:
            self._store.blobs.remove(f"{self._path}/{name}")

    def _make_attempt(self) -> Path:
        """Return this writer's folder for unfinished files."""
        if self._attempt is None:
            if self._local is None:
                self._attempt = Path(tempfile.mkdtemp(prefix="pivotopd-"))
            else:
                attempt = self._local / attempt_name()
                attempt.mkdir(parents=True)
                self._attempt = attempt
        return self._attempt

    def _discard(self) -> None:
        """Remove unfinished files; parts stay, since a writer of the same rows may count on them."""
        if self._attempt is not None:
            shutil.rmtree(self._attempt, ignore_errors=True)
            self._attempt = None
        if self._local is not None and not self._published:
            with suppress(OSError):  # not empty, or never made
                self._local.rmdir()


def _with_dictionary(schema: pa.Schema) -> list[str]:
    """Return the columns whose values are stored once each: all but lists of numbers.

    Token ids and log-probabilities take a third of the time without, and -17 to +7 % of the room.
    """
    names: list[str] = []
    for item in schema:
        if not pa.types.is_list(item.type):
            names.append(item.name)
        elif not pa.types.is_primitive(item.type.value_type):
            names.append(f"{item.name}.list.element")
    return names


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """Turn a full disk met while a caller fills a folder into StorageError.

    Writers of weights report it in their own ways: safetensors with the system's message inside its own
    exception, torch with a RuntimeError about a position. So the disk is asked.
    """
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in NO_SPACE
        if not full and os.strerror(errno.ENOSPC) not in str(error) and not _is_full(folder):
            raise
        raise StorageError(
            f"cannot write: {os.strerror(errno.ENOSPC)}",
            where=str(folder),
            mend="free some space or set another `root`, then run the same command again",
        ) from error


def _is_full(folder: Path) -> bool:
    """Say whether a folder's disk does not take another small file."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0" * PROBE_BYTES)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno in NO_SPACE
    return False
