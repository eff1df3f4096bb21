"""What a run is: its configuration without the keys that say where, how far or how fast it goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from pivotopd.config import EnvironmentSection, UpdateSection
from pivotopd.engine_section import EngineSection
from pivotopd.teacher_section import EndpointSection, LocalSection

_OUTSIDE: Final = frozenset(
    {"name", "root", "iterations", "threads", "streaming", "tracking", "launch", "diagnosis"}
)
"""Sections and keys with which a run goes on when they change."""
_INSIDE_SECTIONS: Final[Mapping[str, Collection[str]]] = {
    "environment": EnvironmentSection.RUNNING,
    "rollout": {"batch_episodes"},
    "engine": EngineSection.RUNNING,
    "teacher": EndpointSection.RUNNING | (LocalSection.RUNNING - {"path"}),
    "update": UpdateSection.RUNNING,
    "evaluation": {"every"},
}
"""Likewise, keys of sections that else say what a run is."""


def identity_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a configuration, given as plain values, says what a run is."""
    return {
        key: _without(value, _INSIDE_SECTIONS.get(key, ()))
        for key, value in config.items()
        if key not in _OUTSIDE
    }


def _without(section: Any, keys: Collection[str]) -> Any:
    if not isinstance(section, Mapping):
        return section
    return {key: value for key, value in section.items() if key not in keys}
