"""From configuration to an environment. A new environment adds its folder and one line here."""

from __future__ import annotations

from pivotopd.config import EnvironmentSection
from pivotopd.environments.base import Environment


def open_environment(section: EnvironmentSection) -> Environment:
    """Return the environment that a configuration names.

    Raises:
        ConfigError: It cannot be played with these settings.
        EnvironmentFault: Its data cannot be used.
    """
    from pivotopd.environments.alfworld.environment import AlfworldEnvironment  # noqa: PLC0415 - one at a time

    return AlfworldEnvironment(section)
