"""From configuration to an environment. A new environment adds its folder and one line here."""

from __future__ import annotations

import os
from typing import Final

from pivotopd.config import EnvironmentSection
from pivotopd.environments.base import Environment
from pivotopd.environments.workers import WorkerEnvironment

MOST_WORKERS: Final = 16
"""Most worker processes that are chosen by themselves: each holds the engine's packages."""


def open_environment(section: EnvironmentSection) -> Environment:
    """Return the environment that a configuration names, played by the processes that it asks for.

    Raises:
        ConfigError: It cannot be played with these settings.
        EnvironmentFault: Its data cannot be used.
    """
    environment, workers = open_here(section), worker_count(section)
    return WorkerEnvironment(environment, section, workers) if workers else environment


def open_here(section: EnvironmentSection) -> Environment:
    """Return the environment that a configuration names, played in this process.

    Raises:
        ConfigError: It cannot be played with these settings.
        EnvironmentFault: Its data cannot be used.
    """
    from pivotopd.environments.alfworld.environment import AlfworldEnvironment  # noqa: PLC0415 - one at a time

    return AlfworldEnvironment(section)


def worker_count(section: EnvironmentSection) -> int:
    """Return how many processes play: by themselves, as many as CPUs where a step costs more than sending it.

    docs/streaming.md has the figures: a native step costs less than a message to a process, a stock one a
    hundred times as much.
    """
    if section.workers != "auto":
        return section.workers
    if section.engine == "native":
        return 0
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, MOST_WORKERS)
