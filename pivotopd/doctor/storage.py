"""The root: can it be read, written, created in only where nothing is, and is there room for the policies."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pivotopd.artifacts import cache_folder, content_folder
from pivotopd.blobs import Blobs
from pivotopd.config import PretrainedStudent, RunConfig, TinyStudent
from pivotopd.doctor.finding import Finding, finding_of
from pivotopd.errors import StorageError

FREE_GB: Final = 5.0
"""Free disk that the demo and its environment need, with room."""
_ROWS_SHARE: Final = 1.2
"""A policy, and some room for the tables of its iteration."""
_TINY_VOCABULARY: Final = 2_000
"""More tokens than a tiny student's tokenizer has."""


def rights(root: str) -> Iterator[Finding]:
    """Yield whether a root takes, gives back and deletes a file, and refuses to create one twice."""
    yield finding_of(
        f"storage at {root}", lambda: _tried(root), "give the user write access, or set root=URI"
    )


def _tried(root: str) -> str:
    blobs = Blobs(root)
    made = _missing_folders(blobs.local_root)
    name = f".doctor-{uuid.uuid4().hex}"
    try:
        if not blobs.create(name, b"first"):
            raise StorageError("a new file was refused as one that is there", where=blobs.join(name))
        if blobs.create(name, b"second") or blobs.read(name) != b"first":
            raise StorageError(
                "a file that was there has been created again",
                where=blobs.join(name),
                mend="use a store with conditional writes (If-None-Match); else two writers collide",
            )
        blobs.write(name, b"third")
        if blobs.read(name) != b"third":
            raise StorageError("what was written reads back otherwise", where=blobs.join(name))
    finally:
        blobs.remove(name)
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    return "creates only what is not there, reads, writes, deletes"


def _missing_folders(folder: Path | None) -> list[Path]:
    """Return the folders, innermost first, that do not exist yet: a look leaves nothing behind."""
    missing = []
    while folder is not None and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing


def disk(config: RunConfig) -> Iterator[Finding]:
    """Yield whether a local root has room: for the demo without, for every policy with a configuration."""
    root = Blobs(config.root).local_root
    folder = _existing(root or cache_folder())
    free_gb = shutil.disk_usage(folder).free / 1e9
    if root is None:
        found = f"{free_gb:.1f} GB free at {folder} for downloaded policies, {FREE_GB:g} wanted"
        mend = "free some, or set XDG_CACHE_HOME to a folder on another disk"
        yield Finding("disk", free_gb >= FREE_GB, found, mend)
        return
    one_gb = policy_bytes(config) * _ROWS_SHARE / 1e9
    least_gb, all_gb = max(FREE_GB, 3 * one_gb), config.iterations * one_gb
    found = f"{free_gb:.1f} GB free at {folder}"
    mend = "free some, or set root=URI"
    yield Finding("disk", free_gb >= least_gb, f"{found}, {least_gb:.1f} wanted", mend)
    if all_gb > least_gb:
        yield Finding(
            "disk for all policies",
            free_gb >= all_gb,
            f"{found}, {all_gb:.1f} for {config.iterations} iterations",
            "run `pivotopd runs prune --checkpoints N` now and then, or set root=URI",
            required=False,
        )


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def policy_bytes(config: RunConfig) -> int:
    """Return about how large one checkpoint is."""
    student = config.student
    if isinstance(student, PretrainedStudent):
        folder = content_folder(Path(student.path))
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert isinstance(student, TinyStudent), "there is no third kind"  # noqa: S101
    attention = 2 * student.hidden**2 * (1 + student.kv_heads / student.heads)
    layer = attention + 3 * student.hidden * student.intermediate
    return int(4 * (student.layers * layer + _TINY_VOCABULARY * student.hidden))


def student_folder(config: RunConfig) -> Iterator[Finding]:
    """Yield whether a pretrained student's folder holds a model."""
    if not isinstance(config.student, PretrainedStudent):
        return
    folder = content_folder(Path(config.student.path))
    there = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    yield Finding(
        "student",
        there,
        str(folder) if there else f"{folder} holds no config.json with safetensors weights",
        "set student.path to a folder of a model",
    )
