"""The student as its own teacher: requests through the engine that plays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pivotopd.models.base import Codec, Generator, Request, Sampling
from pivotopd.seeds import seed_of
from pivotopd.teacher.chat import Answer, Ask

_COUNTS = ("teacher_calls", "teacher_prompts_too_long")


@dataclass(frozen=True, slots=True)
class Student:
    """A policy that can be asked in words."""

    generator: Generator
    codec: Codec


@dataclass
class StudentChat:
    """Answers with a student.

    A request's seed is made of its text, so an answer does not depend on what else is asked.

    Args:
        student: The policy.
        sampling: How it answers.
        prompt_tokens: Longest prompt; a longer one is a failed request.
        run_seed: Seed of the run.
    """

    student: Student
    sampling: Sampling
    prompt_tokens: int
    run_seed: int
    name: str = "self"
    where: str = "teacher"
    counts: dict[str, int] = field(
        default_factory=lambda: {"teacher_calls": 0, "teacher_prompts_too_long": 0}
    )

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Return one answer a request."""
        prompts = [self.student.codec.encode_prompt(one.prompt) for one in asks]
        fitting = [index for index, ids in enumerate(prompts) if len(ids) <= self.prompt_tokens]
        requests = [Request(prompts[index], self._seed(asks[index])) for index in fitting]
        completions = self.student.generator.generate(requests, self.sampling) if requests else []
        self.counts["teacher_calls"] += len(requests)
        self.counts["teacher_prompts_too_long"] += len(asks) - len(requests)
        answers = [
            Answer(one.prompt, None, f"the prompt has {len(ids)} tokens, at most {self.prompt_tokens}")
            for one, ids in zip(asks, prompts, strict=True)
        ]
        for index, completion in zip(fitting, completions, strict=True):
            text, _ = self.student.codec.decode(completion.response_ids.tolist())
            answers[index] = Answer(asks[index].prompt, text, cut=completion.finish_reason == "length")
        return answers

    def _seed(self, ask: Ask) -> int:
        return seed_of("teacher", self.run_seed, hashlib.sha256(ask.prompt.encode()).hexdigest())
