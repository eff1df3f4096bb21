"""What commands share: reading ``[CONFIG] [KEY=VALUE]...`` from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pivotopd.config import RunConfig


def config_from(arguments: list[str] | None) -> RunConfig:
    """Return the configuration of a file (the first argument without ``=``) and overrides."""
    from pivotopd.config_files import load_config

    given = arguments or []
    first = [] if not given or "=" in given[0] else given[:1]
    return load_config(first[0] if first else None, given[len(first) :])
