"""The run under a root that was trained last."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from pivotopd.artifacts import Store
from pivotopd.errors import ArtifactError

_UPDATE: Final = re.compile(r"(?P<run>[^/]+)/iterations/\d+/update/[0-9a-f]{64}/manifest\.json")
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def newest_run(root: str) -> str:
    """Return the address of the run with the newest published update; of equal times, the last name's.

    Raises:
        ArtifactError: No run under the root has an update.
        StorageError: The store cannot be listed.
    """
    store = Store(root)
    found = [
        (entry.changed_at or _NEVER, match["run"])
        for entry in store.blobs.entries()
        if (match := _UPDATE.fullmatch(entry.path)) is not None
    ]
    if not found:
        raise ArtifactError(
            "no run here has an update yet",
            where=root,
            mend="train one, or name another root; `pivotopd runs list ROOT` shows what is there",
        )
    return store.join(max(found)[1])
