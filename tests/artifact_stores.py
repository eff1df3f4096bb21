"""What the artifact tests share: stores of three kinds, one as strict as S3, and one small artifact."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pivotopd.artifacts import Artifact, Store
from pivotopd.publish import ArtifactWriter
from pivotopd.records import Chain

DIGEST = "d" * 64
PREFIX = "run/iterations/0003/recover"
ROOT = Path(__file__).resolve().parent.parent


class StrictStore(MemoryFileSystem):
    """Refuses a create-only write as SeaweedFS does: EINVAL, not FileExistsError."""

    protocol: ClassVar[tuple[str, ...]] = ("strictstore",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    refuse: ClassVar[OSError | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("strictstore://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if type(self).refuse is not None:
            raise type(self).refuse
        if mode == "create" and self.exists(path):
            raise OSError(errno.EINVAL, "At least one of the pre-conditions you specified did not hold")
        super().pipe_file(path, value, **kwargs)


fsspec.register_implementation("strictstore", StrictStore, clobber=True)


KINDS = ["local", "memory", "strictstore"]


def fresh_store(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Yield an empty store of a kind; downloads are cached inside the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    yield Store(str(folder / "root") if kind == "local" else f"{kind}://bucket/{folder.name}")
    MemoryFileSystem.store.clear()
    StrictStore.store.clear()


def chains(count: int = 3, run: str = "run") -> list[Chain]:
    return [Chain(run, 3, f"e{index}", 2, 1, "no_action", None) for index in range(count)]


def begin(store: Store, digest: str = DIGEST, prefix: str = PREFIX) -> ArtifactWriter:
    return store.begin(
        prefix,
        digest,
        stage="recover",
        run="run",
        iteration=3,
        code="c0de",
        config={"depth": 2},
        inputs={"rollout": "e" * 64},
    )


def write(store: Store, rows: list[Chain] | None = None, digest: str = DIGEST) -> Artifact:
    with begin(store, digest) as writer:
        writer.write_rows(Chain, chains() if rows is None else rows)
        return writer.publish(counts={"chains": 3}, seconds={"play": 1.5}, notes={"policy": "p"})


def folder_of(store: Store) -> Path:
    root = store.blobs.local_root
    assert root is not None
    return root / PREFIX / DIGEST
