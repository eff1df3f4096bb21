"""What lies under a root, from one listing: runs with their artifacts, sizes and last activity."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pivotopd.artifacts import COMPARISONS, MANIFEST, SHARED, Store
from pivotopd.blobs import Entry

_PUBLISHED: Final = re.compile(
    r"(?:iterations/(?P<iteration>\d+)/)?(?P<stage>[^/]+)/[0-9a-f]{64}/manifest\.json"
)
CONFIG: Final = "config.yaml"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a listing tells of a run, or of the folder that runs share.

    Attributes:
        name: Name of the run, or ``shared``.
        stages: Stage to number of published artifacts.
        updates: Number of iterations with a published update.
        files: Number of files.
        bytes: Their size.
        last_activity: When a file was last written, UTC; None where the store does not tell.
    """

    name: str
    stages: Mapping[str, int]
    updates: int
    files: int
    bytes: int
    last_activity: datetime | None


def list_runs(root: str) -> list[RunSummary]:
    """Return the runs under a root by name, and last the folder that they share where there is one.

    Raises:
        StorageError: The store cannot be listed.
    """
    folders: dict[str, list[Entry]] = defaultdict(list)
    for entry in Store(root).blobs.entries():
        name, slash, _ = entry.path.partition("/")
        if slash and name != COMPARISONS:
            folders[name].append(entry)
    runs = [
        name
        for name, entries in sorted(folders.items())
        if name != SHARED and any(entry.path == f"{name}/{CONFIG}" for entry in entries)
    ]
    return [_summary(name, folders[name]) for name in [*runs, *({SHARED} & folders.keys())]]


def _summary(name: str, entries: Sequence[Entry]) -> RunSummary:
    stages: Counter[str] = Counter()
    updated = set()
    for entry in entries:
        match = _PUBLISHED.fullmatch(entry.path.removeprefix(f"{name}/"))
        if match is not None and entry.path.endswith(MANIFEST):
            stages[match["stage"]] += 1
            if match["stage"] == "update":
                updated.add(match["iteration"])
    times = [entry.changed_at for entry in entries if entry.changed_at is not None]
    return RunSummary(
        name,
        dict(stages),
        len(updated),
        len(entries),
        sum(entry.bytes for entry in entries),
        max(times, default=None),
    )
