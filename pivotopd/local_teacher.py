"""A model folder as the teacher: can it be asked, before any work; loading it, or finding who holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.models.base import PolicyEngine
from pivotopd.models.checkpoint import load_policy, model_facts, read_text_side
from pivotopd.models.devices import put_on_device
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.models.vllm_engine import VllmEngine, check_vllm
from pivotopd.services.attach import attach_teacher
from pivotopd.teacher.model_chat import Speaker
from pivotopd.teacher_section import LocalSection

_KEY = "teacher.path"


@dataclass(frozen=True, slots=True)
class LocalTeacher:
    """A teacher that can be asked.

    Attributes:
        speaker: Answers.
        close: Frees what it holds beside this process's own memory.
    """

    speaker: Speaker
    close: Callable[[], None]


def check_local_teacher(section: LocalSection) -> Path:
    """Return the teacher's folder; no weights are read.

    Raises:
        ConfigError: Its longest prompt and reply do not fit the model.
        ArtifactError: The folder is missing or damaged.
    """
    folder = Path(section.path)
    if not folder.is_dir():
        raise ArtifactError(
            "no such model folder", where=str(folder), mend=f"set {_KEY} to a folder of a model"
        )
    limit = model_facts(folder).positions
    longest = section.prompt_tokens + section.reply_tokens
    if limit is not None and longest > limit:
        raise ConfigError(
            f"a prompt and reply of up to {longest} tokens pass the teacher's limit {limit}",
            where=_KEY,
            mend="lower teacher.prompt_tokens or teacher.reply_tokens",
        )
    return folder


def check_engine(section: LocalSection) -> None:
    """Refuse an engine that is not installed here, where it is to run here.

    Raises:
        ConfigError: It is not.
    """
    if section.engine == "vllm" and not section.urls:
        check_vllm(where="teacher.engine")


def load_local_teacher(section: LocalSection, digest: str, *, token_budget: int) -> LocalTeacher:
    """Load the teacher's model, or attach to the servers that hold it.

    Args:
        section: The teacher's section.
        digest: Digest of the folder's content, which names the teacher wherever the folder lies.
        token_budget: Most positions of one forward pass of a prompt, in this process.

    Raises:
        ArtifactError: The folder or a part of it is missing or damaged.
        ConfigError: The engine is not installed or cannot run the model, or its chat template gives no
            reproducible prompts.
        EngineFault: A server cannot be reached, or what answers is not this teacher.
    """
    folder = check_local_teacher(section)
    codec = read_text_side(folder).codec
    if section.urls:
        engine = attach_teacher(section, digest)
    else:
        engine = start_teacher(section, digest, token_budget=token_budget)
    return LocalTeacher(Speaker(engine, codec, f"local {digest[:12]}", str(folder)), engine.close)


def start_teacher(section: LocalSection, digest: str, *, token_budget: int) -> PolicyEngine:
    """Start the teacher's engine in this process, whatever addresses its section has.

    Raises:
        ArtifactError: The folder or a part of it is missing or damaged.
        ConfigError: The engine is not installed or cannot run the model.
    """
    folder = check_local_teacher(section)
    if section.engine == "vllm":
        check_vllm(where="teacher.engine")
        return VllmEngine(
            folder,
            read_text_side(folder).stop_ids,
            dtype=section.dtype,
            max_tokens=section.prompt_tokens + section.reply_tokens,
            concurrency=section.concurrency,
            gpu_memory_share=section.gpu_memory_share,
            policy=digest,
            section="teacher",
        )
    policy = load_policy(folder, section.dtype)
    put_on_device(policy.model)
    return TransformersEngine(policy, token_budget, section.concurrency, digest)
