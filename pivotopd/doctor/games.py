"""The games that a run plays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pivotopd.config import RunConfig
from pivotopd.doctor.finding import Finding, finding_of
from pivotopd.environments.registry import open_environment


def official() -> Iterator[Finding]:
    """Yield whether the official games are on this machine."""
    folder = os.environ.get("ALFWORLD_DATA")
    yield Finding(
        "official games",
        bool(folder) and Path(folder or "").is_dir(),
        folder or "ALFWORLD_DATA is not set",
        "only needed to train on them: environment.games=PATH; generated games need none",
        required=False,
    )


def configured(config: RunConfig) -> Iterator[Finding]:
    """Yield whether both splits of a configuration have games."""
    mend = "set environment.games to a folder of the ALFWorld release or a Parquet of games"
    yield finding_of("games", lambda: _splits(config), mend)


def _splits(config: RunConfig) -> str:
    environment = open_environment(config.environment)
    splits = (config.environment.train_split, config.environment.valid_split)
    found = {split: environment.data_fingerprint(split)[:12] for split in splits}
    where = config.environment.games or "generated"
    return f"{where}: " + ", ".join(f"{split} {digest}" for split, digest in found.items())
