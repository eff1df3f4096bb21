"""The teacher of a job, with the model that it speaks through."""

from __future__ import annotations

from functools import partial

from pivotopd.local_teacher import load_local_teacher
from pivotopd.teacher.base import Teacher
from pivotopd.teacher.model_chat import Speaker
from pivotopd.teacher.registry import make_teacher
from pivotopd.teacher_section import LocalSection, SelfSection
from stages.work import Job, Work


def teacher_of(work: Work, job: Job) -> Teacher:
    """Return the configured teacher; a model in a folder is one of the job's inputs, wherever it runs."""
    return make_teacher(work.config, work.environment, _speaker(work, job))


def _speaker(work: Work, job: Job) -> Speaker | None:
    section = work.config.teacher
    if isinstance(section, SelfSection):
        policy = job.inputs["policy"]
        return Speaker(work.engine(policy), work.policy(policy).codec)
    if isinstance(section, LocalSection):
        digest, budget = job.inputs["teacher"].digest, work.config.update.micro_batch_tokens
        load = partial(load_local_teacher, section, digest, token_budget=budget)
        return work.keep(f"teacher {digest}", load, attached=bool(section.urls)).speaker
    return None
