"""Can the larger model score the student's tokens? Asked before any work, from configurations and tokenizers.

A distillation signal compares two models' log-probabilities of the same token ids. With another tokenizer the
ids mean other text, and the numbers would be nonsense without any error.
"""

from __future__ import annotations

from pathlib import Path

from pivotopd.config import RunConfig
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.models.checkpoint import model_facts
from pivotopd.student_facts import student_facts

_KEY = "larger_teacher.path"


def check_larger_teacher(config: RunConfig) -> Path:
    """Return the larger model's folder; no weights are read.

    Args:
        config: A run whose method needs a larger model.

    Raises:
        ConfigError: No model is given, or its tokenizer, its head or its longest input do not fit.
        ArtifactError: The folder, or the student's, is missing or damaged.
    """
    name = config.larger_teacher.path
    if name is None:
        raise ConfigError(
            f"method {config.method.name} needs a larger model, and none is given",
            where=_KEY,
            mend=f"set {_KEY} to a model folder with the student's tokenizer, such as a run's checkpoint",
        )
    folder = Path(name)
    if not folder.is_dir():
        raise ArtifactError(
            "no such model folder", where=str(folder), mend=f"set {_KEY} to a folder of a model"
        )
    teacher, (student, whose) = model_facts(folder), student_facts(config)
    if teacher.tokenizer != student.tokenizer:
        raise ConfigError(
            f"the larger model's tokenizer is not the student's: fingerprint {teacher.tokenizer[:12]} of "
            f"{folder}, {student.tokenizer[:12]} of {whose}",
            where=_KEY,
            mend="use models of one family with equal tokenizer files and chat template",
        )
    if teacher.head_rows < student.head_rows:
        raise ConfigError(
            f"the larger model has logits for {teacher.head_rows} tokens ({folder}), the student can sample "
            f"{student.head_rows} ({whose})",
            where=_KEY,
            mend="use a larger model with at least as many",
        )
    longest = config.rollout.prompt_tokens + config.rollout.response_tokens
    if teacher.positions is not None and longest > teacher.positions:
        raise ConfigError(
            f"a prompt and response of up to {longest} tokens pass the larger model's limit "
            f"{teacher.positions}",
            where=_KEY,
            mend="lower rollout.prompt_tokens or rollout.response_tokens",
        )
    return folder
