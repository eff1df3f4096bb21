"""From configuration to a teacher."""

from __future__ import annotations

from pivotopd.config import RunConfig
from pivotopd.environments.base import Environment
from pivotopd.teacher.base import Teacher
from pivotopd.teacher.oracle import OracleTeacher


def make_teacher(config: RunConfig, environment: Environment) -> Teacher:
    """Return the teacher that a configuration names."""
    return OracleTeacher(
        environment,
        informed=config.teacher.informed,
        history=config.environment.history,
        max_candidates=config.teacher.max_candidates,
    )
