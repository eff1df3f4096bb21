"""What the chat templates of a run's models do to its prompts; asked before any work, of tokenizers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pivotopd.config import PretrainedStudent, RunConfig, TinyStudent
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.models.chat_template import TemplateReport
from pivotopd.teacher_section import LocalSection


@dataclass(frozen=True, slots=True)
class PromptCheck:
    """The templates of a run's models.

    Attributes:
        student: Of the student, and so of everything that reads its prompts, such as a larger teacher.
        teacher: Of another model in this process that teaches; None for all other teachers.
    """

    student: TemplateReport
    teacher: TemplateReport | None = None

    @property
    def reports(self) -> Iterator[tuple[str, TemplateReport]]:
        """Each model's role with its report."""
        yield "student", self.student
        if self.teacher is not None:
            yield "teacher", self.teacher

    @property
    def lines(self) -> Iterator[str]:
        """The findings, for a person."""
        for role, report in self.reports:
            yield f"prompts of the {role}:"
            for one in report.findings:
                yield f"  {one.what}: {one.found}; {one.rule}"

    @property
    def values(self) -> dict[str, Any]:
        """The same as plain values, for a file."""
        return {role: report.values for role, report in self.reports}


def check_tiny_student(config: RunConfig) -> TinyStudent:
    """Return the student that is to be warm-started.

    Raises:
        ConfigError: It is none, or could not read its prompts.
    """
    if not isinstance(config.student, TinyStudent):
        raise ConfigError("only a tiny student is warm-started", where="student.kind", mend="use kind: tiny")
    if config.environment.prompt != "compact":
        raise ConfigError(
            "a tiny student reads the compact prompt only",
            where="environment.prompt",
            mend="set environment.prompt=compact or another student; configs/demo.yaml is one to begin with",
        )
    return config.student


def check_prompts(config: RunConfig) -> PromptCheck:
    """Probe the chat templates of the student and of a local teacher; no weights are read.

    Raises:
        ConfigError: A template gives no reproducible prompts.
        ArtifactError: A model folder is missing, or its tokenizer is.
    """
    student, teacher = config.student, config.teacher
    found = TemplateReport()  # a tiny student's tokenizer, made here, has no template
    if isinstance(student, PretrainedStudent):
        found = _template(student.path, "student.path")
    return PromptCheck(
        found, _template(teacher.path, "teacher.path") if isinstance(teacher, LocalSection) else None
    )


def _template(folder: str, key: str) -> TemplateReport:
    from pivotopd.models.checkpoint import load_tokenizer  # noqa: PLC0415 - heavy
    from pivotopd.models.codec import TokenizerCodec  # noqa: PLC0415 - with it

    if not Path(folder).is_dir():
        raise ArtifactError("no such model folder", where=folder, mend=f"set {key} to a folder of a model")
    return TokenizerCodec(load_tokenizer(folder)).template
