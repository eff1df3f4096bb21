"""The order of test modules: the longest begin first, so that no worker is left with one at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

SLOW_S: Final = 20.0
"""Seconds of a test marked ``slow`` that does not say its own."""


def longest_modules_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort modules by the seconds of their slow tests; equal ones and the tests of each stay as they were."""
    seconds: dict[str, float] = {}
    for item in items:
        module = _module(item)
        seconds[module] = seconds.get(module, 0.0) + _seconds(item)
    places = {module: place for place, module in enumerate(seconds)}
    return sorted(items, key=lambda item: (-seconds[_module(item)], places[_module(item)]))


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _seconds(item: pytest.Item) -> float:
    mark = item.get_closest_marker("slow")
    return 0.0 if mark is None else float(mark.kwargs.get("seconds", SLOW_S))
