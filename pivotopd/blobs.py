"""Bytes under paths of one root: a local folder or any fsspec URI.

Only operations that object stores have: whole reads, whole atomic writes, create-only writes, listing. On a
local folder, writes go to a temporary name, are synced, and are moved into place; nobody sees half a file.
Elsewhere an operation that fails in a passing way is tried again (:mod:`pivotopd.object_store`). The
filesystem object is looked up at each use, so a :class:`Blobs` holds nothing but its address: it pickles, and
it survives a fork.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pivotopd.errors import StorageError
from pivotopd.object_store import failure, open_filesystem, patiently, reason, truly_missing

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
WRITER = "pivotopd-writer"
"""Metadata of an object that was created only where none was: who did."""
READ_BYTES = 32 << 20
"""Size of one request where a large file is read piece by piece."""
CONDITION_FAILED = frozenset({errno.EEXIST, errno.EINVAL})
"""How backends report that a create-only write met an existing key (S3 servers differ: EINVAL is a 412)."""

_ATTEMPT = re.compile(r"\.attempt-(.+)-(\d+)-[0-9a-f]{12}$")


@contextmanager
def storage_errors(action: str, where: str) -> Iterator[None]:
    """Turn a filesystem's failures into our errors; a file that is truly missing passes, for the caller.

    Raises:
        StorageError: The store cannot do it.
        ConfigError: Keys or address of a remote store are wrong.
        FileNotFoundError: There is no such file, and the store itself says so.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FileNotFoundError) and truly_missing(error):
            raise
        told = failure(action, where, error)
        if told is None:
            raise
        raise told from error


def _condition_failed(cause: BaseException | None) -> bool:
    return isinstance(cause, FileExistsError) or (
        isinstance(cause, OSError) and cause.errno in CONDITION_FAILED
    )


def sha256_of(path: Path) -> str:
    """Return the sha256 (hex) of a local file, read in chunks."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def intact(path: Path, size_bytes: int, sha256: str) -> bool:
    """Say whether a local file exists with this size and hash."""
    return path.is_file() and path.stat().st_size == size_bytes and sha256_of(path) == sha256


def attempt_name() -> str:
    """Return a new hidden name for something unfinished; it tells whose it is."""
    return f".attempt-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def sweep(folder: Path) -> None:
    """Remove from a local folder what dead processes of this host left unfinished."""
    for path in folder.glob(".attempt-*"):
        match = _ATTEMPT.match(path.name)
        if match is None or match.group(1) != socket.gethostname() or alive(int(match.group(2))):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Say whether a process of this host exists, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync(path: Path) -> None:
    """Flush a local file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _read_whole(filesystem: Any, name: str) -> bytes:
    """Return a file's bytes; on S3 by one GET: a HEAD before it would not tell a missing bucket apart."""
    options = {"max_concurrency": 1} if "s3" in filesystem.protocol else {}
    return bytes(filesystem.cat_file(name, **options))


def _read_range(filesystem: Any, name: str, *, start: int, stop: int) -> bytes:
    return bytes(filesystem.cat_file(name, start=start, end=stop))


def _create_remote(filesystem: Any, name: str, *, data: bytes, writer: str) -> None:
    marked = {"Metadata": {WRITER: writer}} if "s3" in filesystem.protocol else {}
    filesystem.pipe_file(name, data, mode="create", **marked)


def _writer_of(filesystem: Any, name: str) -> str | None:
    """Return the mark of the writer that created an object; other backends than S3 keep none."""
    return filesystem.metadata(name).get(WRITER) if "s3" in filesystem.protocol else None


def _remove_remote(filesystem: Any, name: str) -> None:
    """Delete a file, or all below a name; s3fs does not tell what a bulk deletion left."""
    if "s3" not in filesystem.protocol:
        filesystem.rm(name, recursive=True)
        return
    below = f"{name.rstrip('/')}/"
    names = [found for found in filesystem.find(name) if found.startswith(below)]
    if not names:
        filesystem.rm_file(name)
        return
    filesystem.rm(names)
    left = [found for found in filesystem.find(name) if found.startswith(below)]
    if left:
        raise PermissionError(errno.EACCES, f"{len(left)} files were not deleted, such as {left[0]}")


def _entry(path: str, info: Mapping[str, Any]) -> Entry:
    changed = next(
        (info[key] for key in ("LastModified", "mtime", "modified", "created") if key in info), None
    )
    if isinstance(changed, int | float):
        changed = datetime.fromtimestamp(changed, UTC)
    when = changed if isinstance(changed, datetime) else None
    return Entry(path, int(info["size"] or 0), when)


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored file.

    Attributes:
        path: Path relative to the root.
        bytes: Size.
        changed_at: When it was written, UTC; None where the store does not tell.
    """

    path: str
    bytes: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Blobs:
    """One root: ``runs``, ``/data/runs``, ``file:///data/runs``, ``s3://bucket/runs``, ``memory://runs``."""

    uri: str

    @property
    def local_root(self) -> Path | None:
        """The root as a local folder, or None where it is remote."""
        if "::" in self.uri or ("://" in self.uri and not self.uri.startswith(("file://", "local://"))):
            return None
        return Path(os.path.abspath(Path(self.uri.partition("://")[2] or self.uri).expanduser()))

    def join(self, path: str) -> str:
        """Return the address of a path below the root."""
        if self.local_root is not None:
            root = str(self.local_root)
            return f"{root.rstrip('/')}/{path}" if path else root
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{rest.rstrip('/')}/{path}" if path else self.uri

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, or None only where it truly does not exist.

        Raises:
            StorageError: The store cannot be read for any other reason.
        """
        try:
            return self._remote("read", path, _read_whole)
        except FileNotFoundError:
            return None

    def chunks(self, path: str, size_bytes: int) -> Iterator[bytes]:
        """Yield a file's bytes piece by piece, as far as a size.

        Raises:
            StorageError: The store cannot be read.
            FileNotFoundError: It does not exist.
        """
        for start in range(0, size_bytes, READ_BYTES):
            stop = min(start + READ_BYTES, size_bytes)
            yield self._remote("read", path, partial(_read_range, start=start, stop=stop))

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole, replacing what was there.

        Raises:
            StorageError: The store does not take it; what was there before is unchanged.
        """
        with self._writing(path):
            local = self._local(path)
            if local is None:
                self._remote("write", path, lambda filesystem, name: filesystem.pipe_file(name, data))
                return
            with self._temporary(local, data) as temporary:
                temporary.replace(local)
                sync(local.parent)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file whole unless one exists; return False, and change nothing, if one does.

        On a local folder a synced temporary file is hard-linked to the name, which never overwrites.
        Elsewhere it is the backend's conditional put. On S3 the object is marked with its writer: the layers
        below send a request again when its answer was lost, and then it may meet its own object. ``data``
        must not be empty: an empty one would overwrite on S3.

        Raises:
            StorageError: The store does not take it.
        """
        if not data:
            raise ValueError("a create-only write needs at least one byte")
        writer = uuid.uuid4().hex
        try:
            with self._writing(path):
                local = self._local(path)
                if local is None:
                    self._remote("write", path, partial(_create_remote, data=data, writer=writer))
                    return True
                with self._temporary(local, data) as temporary:
                    os.link(temporary, local)
                    sync(local.parent)
                return True
        except StorageError as error:
            if not _condition_failed(error.__cause__) or self.read(path) is None:
                raise
            return self.local_root is None and self._remote("read", path, _writer_of) == writer

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file to a path of a remote root."""
        with self._writing(path):
            self._remote("write", path, lambda filesystem, name: filesystem.put_file(str(source), name))

    def download(self, path: str, target: Path) -> bool:
        """Copy a file of a remote root to a local file; return False where it does not exist."""
        try:
            with storage_errors("download", self.join(path)):
                target.parent.mkdir(parents=True, exist_ok=True)
            self._remote("download", path, lambda filesystem, name: filesystem.get_file(name, str(target)))
        except FileNotFoundError:
            return False
        return True

    def place(self, source: Path, path: str) -> None:
        """Copy a local file to a path of this root, local or remote, whole or not at all."""
        local = self._local(path)
        if local is None:
            self.upload(source, path)
            return
        with self._writing(path):
            local.parent.mkdir(parents=True, exist_ok=True)
            temporary = local.with_name(attempt_name())
            try:
                shutil.copyfile(source, temporary)
                sync(temporary)
                temporary.replace(local)
                sync(local.parent)
            finally:
                temporary.unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        """Delete a file or a folder with all below it; one that is not there is no error."""
        with suppress(FileNotFoundError), storage_errors("delete", self.join(path)):
            local = self._local(path)
            if local is not None and not local.is_dir():
                local.unlink()
            elif local is not None:
                shutil.rmtree(local)
            else:
                self._remote("delete", path, _remove_remote)

    def find(self, path: str) -> list[str]:
        """Return the paths, relative to the root, of all files below a path, sorted; hidden ones left out."""
        return [entry.path for entry in self.entries(path)]

    def entries(self, path: str = "") -> list[Entry]:
        """Return all files below a path with size and time, by path; hidden ones left out."""
        root = self.join("")

        def listed(filesystem: Any, name: str) -> list[Entry]:
            start = str(filesystem._strip_protocol(root)).rstrip("/") + "/"
            found: dict[str, dict[str, Any]] = filesystem.find(name, detail=True)
            below = f"{name.rstrip('/')}/"  # a server may tell of an empty folder as a file of its name
            return [
                _entry(one.removeprefix(start), info) for one, info in found.items() if one.startswith(below)
            ]

        try:
            found = self._remote("list", path, listed)
        except FileNotFoundError:
            return []
        return sorted((entry for entry in found if not _hidden(entry.path)), key=lambda entry: entry.path)

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the folders right below a path, sorted; hidden ones left out."""
        try:
            entries = self._remote("list", path, lambda filesystem, name: filesystem.ls(name, detail=True))
        except FileNotFoundError:
            return []
        names = (
            str(entry["name"]).rstrip("/").rpartition("/")[2]
            for entry in entries
            if entry["type"] == "directory"
        )
        return sorted(name for name in names if not name.startswith("."))

    def _remote(self, action: str, path: str, call: Callable[[Any, str], T]) -> T:
        """Call a function with this process's filesystem and a path's name on it; try again elsewhere.

        A local filesystem is asked once: what it refuses, it refuses the next moment too.
        """
        where = self.join(path)

        def attempt() -> T:
            return call(*open_filesystem(where))

        with storage_errors(action, where):
            return attempt() if self.local_root is not None else patiently(where, attempt)

    def _local(self, path: str) -> Path | None:
        root = self.local_root
        return None if root is None else root / path

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Like :func:`storage_errors`; a missing parent is a storage failure too."""
        where = self.join(path)
        try:
            with storage_errors("write", where):
                yield
        except FileNotFoundError as error:
            raise StorageError(
                f"cannot write: {reason(error)}", where=where, mend="make the bucket or folder first"
            ) from error

    @contextmanager
    def _temporary(self, local: Path, data: bytes) -> Iterator[Path]:
        """Yield a synced temporary file beside a local one; it is gone afterwards."""
        local.parent.mkdir(parents=True, exist_ok=True)
        temporary = local.with_name(attempt_name())
        try:
            with temporary.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
