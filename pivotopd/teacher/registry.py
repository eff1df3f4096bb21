"""From configuration to a teacher."""

from __future__ import annotations

from pivotopd.config import EndpointSection, RunConfig, SelfSection
from pivotopd.environments.base import Environment
from pivotopd.models.base import Sampling
from pivotopd.teacher.base import Teacher
from pivotopd.teacher.chat import Chat
from pivotopd.teacher.endpoint import EndpointChat
from pivotopd.teacher.llm import LlmTeacher
from pivotopd.teacher.oracle import OracleTeacher
from pivotopd.teacher.reply_cache import ReplyCache
from pivotopd.teacher.student_chat import Student, StudentChat


def make_teacher(config: RunConfig, environment: Environment, student: Student | None = None) -> Teacher:
    """Return the teacher that a configuration names.

    Args:
        config: Resolved configuration.
        environment: The environment.
        student: The policy of the iteration, for the teacher ``self``.
    """
    section = config.teacher
    chat: Chat
    if isinstance(section, EndpointSection):
        chat = EndpointChat(section, ReplyCache.at(config.root, section.cache))
    elif isinstance(section, SelfSection):
        assert student is not None, "the stage gives its policy"  # noqa: S101 - a defect of the caller
        sampling = Sampling(section.temperature, section.reply_tokens)
        chat = StudentChat(student, sampling, section.prompt_tokens, config.seed)
    else:
        return OracleTeacher(environment, section.informed, section.max_candidates)
    return LlmTeacher(environment, chat, section.max_candidates)
