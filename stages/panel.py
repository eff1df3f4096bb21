"""What a measurement on the panel depends on beside the policy, and its fingerprint."""

from __future__ import annotations

import hashlib
from typing import Any

from pivotopd.config import RunConfig
from pivotopd.manifest import canonical_json

PLAYED = {"name", "engine", "wording", "max_turns", "valid_split"}
"""Keys of the environment that decide what a panel is; how a student is told of it is the arm's own."""


def panel_settings(config: RunConfig, games: str) -> dict[str, Any]:
    """Return all that a measurement on the panel depends on, beside the policy.

    Args:
        config: The run's configuration.
        games: Fingerprint of the games of its validation split.
    """
    return {
        "games": games,
        **config.environment.model_dump(mode="json", include=PLAYED),
        **config.evaluation.model_dump(mode="json", exclude={"every"}),
    }


def fingerprint(settings: dict[str, Any]) -> str:
    """Return the hash (sha256, hex) of a panel's settings."""
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()
