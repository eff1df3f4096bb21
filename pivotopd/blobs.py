"""Bytes under paths of one root: a local folder or any fsspec URI.

Only operations that object stores have: whole reads, whole atomic writes, create-only writes, listing. On a
local folder, writes go to a temporary name, are synced, and are moved into place; nobody sees half a file.
The filesystem object is looked up at each use (fsspec keeps one a process), so a :class:`Blobs` holds nothing
but its address: it pickles, and it survives a fork.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pivotopd.errors import StorageError

CHUNK_BYTES = 1 << 20
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
CONDITION_FAILED = frozenset({errno.EEXIST, errno.EINVAL})
"""How backends report that a create-only write met an existing key (S3 servers differ: EINVAL is a 412)."""
BACKENDS = frozenset({"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs", "paramiko"})
"""Packages whose exceptions are storage failures although they are not OSErrors."""


_ATTEMPT = re.compile(r"\.attempt-(.+)-(\d+)-[0-9a-f]{12}$")


@contextmanager
def storage_errors(action: str, where: str) -> Iterator[None]:
    """Turn failures of a filesystem into :class:`StorageError`; FileNotFoundError passes, for the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"cannot {action}: {_reason(error)}", where=where, mend=_mend(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in BACKENDS:
            raise
        raise StorageError(
            f"cannot {action}: {error}",
            where=where,
            mend="check the address, the network and the credentials",
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror if isinstance(error.strerror, str) and error.strerror else str(error)


def _mend(error: OSError) -> str:
    if error.errno in NO_SPACE:
        return "free some space or set another `root`, then run the same command again"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return "give the user write access, or set another `root`"
    return "check the path and that its filesystem is in reach, then run the same command again"


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
        if match is None or match.group(1) != socket.gethostname() or _alive(int(match.group(2))):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
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
        root = str(self.local_root) if self.local_root is not None else self.uri
        return f"{root.rstrip('/')}/{path}" if path else root

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, or None only where it truly does not exist.

        Raises:
            StorageError: The store cannot be read for any other reason.
        """
        where = self.join(path)
        try:
            with storage_errors("read", where):
                filesystem, name = self._open(path)
                return bytes(filesystem.cat_file(name))
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole, replacing what was there.

        Raises:
            StorageError: The store does not take it; what was there before is unchanged.
        """
        with self._writing(path):
            local = self._local(path)
            if local is None:
                filesystem, name = self._open(path)
                filesystem.pipe_file(name, data)
                return
            with self._temporary(local, data) as temporary:
                temporary.replace(local)
                sync(local.parent)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file whole unless one exists; return False, and change nothing, if one does.

        On a local folder a synced temporary file is hard-linked to the name, which never overwrites.
        Elsewhere it is the backend's conditional put. ``data`` must not be empty: an empty one would
        overwrite on S3.

        Raises:
            StorageError: The store does not take it.
        """
        if not data:
            raise ValueError("a create-only write needs at least one byte")
        try:
            with self._writing(path):
                local = self._local(path)
                if local is None:
                    filesystem, name = self._open(path)
                    filesystem.pipe_file(name, data, mode="create")
                    return True
                with self._temporary(local, data) as temporary:
                    os.link(temporary, local)
                    sync(local.parent)
                return True
        except StorageError as error:
            if _condition_failed(error.__cause__) and self.read(path) is not None:
                return False
            raise

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file to a path of a remote root."""
        with self._writing(path):
            filesystem, name = self._open(path)
            filesystem.put_file(str(source), name)

    def download(self, path: str, target: Path) -> bool:
        """Copy a file of a remote root to a local file; return False where it does not exist."""
        try:
            with storage_errors("download", self.join(path)):
                filesystem, name = self._open(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                filesystem.get_file(name, str(target))
        except FileNotFoundError:
            return False
        return True

    def remove(self, path: str) -> None:
        """Delete a file or a folder with all below it; one that is not there is no error."""
        with suppress(FileNotFoundError), storage_errors("delete", self.join(path)):
            local = self._local(path)
            if local is not None and not local.is_dir():
                local.unlink()
            elif local is not None:
                shutil.rmtree(local)
            else:
                filesystem, name = self._open(path)
                filesystem.rm(name, recursive=True)

    def find(self, path: str) -> list[str]:
        """Return the paths, relative to the root, of all files below a path, sorted; hidden ones left out."""
        with storage_errors("list", self.join(path)):
            filesystem, name = self._open(path)
            root = self._open("")[1].rstrip("/") + "/"
            try:
                found = filesystem.find(name)
            except FileNotFoundError:
                return []
        names = (item.removeprefix(root) for item in found)
        return sorted(item for item in names if not any(part.startswith(".") for part in item.split("/")))

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the folders right below a path, sorted; hidden ones left out."""
        with storage_errors("list", self.join(path)):
            filesystem, name = self._open(path)
            try:
                entries = filesystem.ls(name, detail=True)
            except FileNotFoundError:
                return []
        names = (
            str(entry["name"]).rstrip("/").rpartition("/")[2]
            for entry in entries
            if entry["type"] == "directory"
        )
        return sorted(name for name in names if not name.startswith("."))

    def _open(self, path: str) -> tuple[Any, str]:
        """Return this process's filesystem and a path's name on it."""
        import fsspec  # noqa: PLC0415 - late, so that a local root never loads a remote backend before a fork

        try:
            filesystem, name = fsspec.core.url_to_fs(self.join(path), use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise StorageError(
                f"not a usable address: {error}",
                where=self.uri,
                mend="use a folder or an fsspec URI such as s3://bucket/folder, and install its package",
            ) from error
        return filesystem, str(name)

    def _local(self, path: str) -> Path | None:
        root = self.local_root
        return None if root is None else root / path

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Like :func:`storage_errors`; a missing parent (a bucket, say) is a storage failure too."""
        where = self.join(path)
        try:
            with storage_errors("write", where):
                yield
        except FileNotFoundError as error:
            raise StorageError(
                f"cannot write: {_reason(error)}", where=where, mend="make the bucket or folder first"
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
