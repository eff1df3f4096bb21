"""What a run's student is or will be, without its weights; for checks before any work."""

from __future__ import annotations

from pivotopd.config import PretrainedStudent, RunConfig
from pivotopd.environments.alfworld.wording import phrases
from pivotopd.models.checkpoint import ModelFacts, model_facts
from pivotopd.models.codec import fingerprint_of
from pivotopd.models.tiny import MAX_POSITIONS, build_tokenizer


def student_facts(config: RunConfig) -> tuple[ModelFacts, str]:
    """Return the student's facts, and how to name it.

    Raises:
        ArtifactError: Its folder is missing or damaged.
    """
    if isinstance(config.student, PretrainedStudent):
        return model_facts(config.student.path), config.student.path
    tokenizer = build_tokenizer(phrases())
    return ModelFacts(fingerprint_of(tokenizer), len(tokenizer), MAX_POSITIONS), "the tiny student"
