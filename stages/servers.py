"""Servers that a run asks, looked for before its first job, which may be a long warm start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pivotopd.teacher_section import LocalSection
from stages.work import Job, Work

_GENERATES: Final = frozenset({"skills", "rollout", "recover", "evaluate"})
_ASKS: Final = frozenset({"skills", "label", "recover"})


def check_servers(work: Work, jobs: Sequence[Job]) -> None:
    """Refuse a server out of reach, or another than the run's, where a job that is not done needs it.

    Raises:
        EngineFault: One cannot be reached, or would give other draws or replies.
    """
    engine, teacher = work.config.engine, work.config.teacher
    teachers = teacher.urls if isinstance(teacher, LocalSection) else []
    if not engine.urls and not teachers:
        return
    from pivotopd.services.attach import attach_teacher, connect

    waiting = [job for job in jobs if work.made(job) is None]
    if any(job.stage in _GENERATES for job in waiting):
        for url in engine.urls:
            connect(engine, url, dtype=work.config.update.dtype).close()
    asking = next((job for job in waiting if job.stage in _ASKS), None)
    if teachers and asking is not None and isinstance(teacher, LocalSection):
        attach_teacher(teacher, asking.inputs["teacher"].digest).close()
