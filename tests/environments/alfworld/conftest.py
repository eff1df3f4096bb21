"""Fixtures of the ALFWorld tests: the stock engine, where it is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pivotopd.environments.alfworld.games import Game, load_games
from pivotopd.environments.alfworld.stock import packages
from pivotopd.errors import ConfigError

REQUIRED = "PIVOTOPD_REQUIRE_REFERENCE"
"""Set to 1, a missing stock engine is a failure: a build server cannot skip the contract unnoticed."""


@pytest.fixture(scope="session")
def stock_engine() -> str:
    """The version of the installed stock engine; a test that needs it skips, or fails if it is required."""
    try:
        return packages().version
    except ConfigError as error:
        if os.environ.get(REQUIRED, "0") not in ("", "0"):
            pytest.fail(f"{REQUIRED} is set, but: {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def official_games(shared_data: Path) -> list[Game]:
    """All official games; a test that needs them skips where they are absent."""
    return load_games(shared_data / "alfworld")
