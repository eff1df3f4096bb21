"""From configuration to a teacher."""

from __future__ import annotations

from pivotopd.config import RunConfig
from pivotopd.environments.base import Environment
from pivotopd.models.base import Sampling
from pivotopd.teacher.base import Teacher
from pivotopd.teacher.chat import Chat
from pivotopd.teacher.endpoint import EndpointChat
from pivotopd.teacher.llm import LlmTeacher
from pivotopd.teacher.model_chat import ModelChat, Speaker
from pivotopd.teacher.oracle import OracleTeacher
from pivotopd.teacher.reply_cache import ReplyCache
from pivotopd.teacher_section import EndpointSection, LocalSection, SelfSection


def make_teacher(config: RunConfig, environment: Environment, speaker: Speaker | None = None) -> Teacher:
    """Return the teacher that a configuration names.

    Args:
        config: Resolved configuration.
        environment: The environment.
        speaker: The model that answers, for the teachers ``self`` (the iteration's policy) and ``local``.
    """
    section = config.teacher
    chat: Chat
    if isinstance(section, EndpointSection):
        chat = EndpointChat(section, ReplyCache.at(config.root, section.cache))
    elif isinstance(section, SelfSection | LocalSection):
        assert speaker is not None, "the stage gives the model"  # noqa: S101 - a defect of the caller
        sampling = Sampling(section.temperature, section.reply_tokens)
        chat = ModelChat(speaker, sampling, section.prompt_tokens, config.seed)
    else:
        return OracleTeacher(environment, section.informed, section.max_candidates)
    return LlmTeacher(environment, chat, section.max_candidates)
