"""A model in this process as a teacher: the student through the engine that plays, or another one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pivotopd.ledger import Counts
from pivotopd.models.base import Codec, Generator, Request, Sampling
from pivotopd.models.repeats import repeats_of
from pivotopd.seeds import seed_of
from pivotopd.teacher.chat import Answer, Ask


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model that can be asked in words.

    Attributes:
        generator: Writes its replies.
        codec: Text to its ids and back.
        name: Who answers, in labels: ``self``, or ``local`` with the digest of the model's content.
        where: Where it comes from, for errors.
    """

    generator: Generator
    codec: Codec
    name: str = "self"
    where: str = "teacher"


@dataclass
class ModelChat:
    """Answers with a speaker.

    A request's seed is made of its text and number, so an answer does not depend on what else is asked.

    Args:
        speaker: The model.
        sampling: How it answers.
        prompt_tokens: Longest prompt; a longer one is a failed request.
        run_seed: Seed of the run.
    """

    speaker: Speaker
    sampling: Sampling
    prompt_tokens: int
    run_seed: int
    name: str = field(init=False)
    where: str = field(init=False)
    spent: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        """Name the teacher by who answers."""
        self.name, self.where = self.speaker.name, self.speaker.where

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Return one answer a request; equal requests, which have one seed, are answered once."""
        repeats = repeats_of([(one.prompt, one.sample) for one in asks])
        answers = self._answer([asks[index] for index in repeats.firsts])
        self.spent += Counts(teacher_cached=len(repeats.later))
        return [answers[kind] for kind in repeats.kinds]

    def _answer(self, asks: Sequence[Ask]) -> list[Answer]:
        codec = self.speaker.codec
        prompts = [codec.encode_prompt(one.prompt) for one in asks]
        fitting = [index for index, ids in enumerate(prompts) if len(ids) <= self.prompt_tokens]
        requests = [Request(prompts[index], self._seed(asks[index])) for index in fitting]
        completions = self.speaker.generator.generate(requests, self.sampling) if requests else []
        self.spent += Counts(
            teacher_calls=len(requests),
            teacher_prompts_too_long=len(asks) - len(requests),
            teacher_prompt_tokens=sum(len(one.prompt_ids) for one in requests),
            teacher_cached_prompt_tokens=sum(one.cached_tokens for one in completions),
            teacher_reply_tokens=sum(len(one.response_ids) for one in completions),
        )
        answers = [
            Answer(one.prompt, None, f"the prompt has {len(ids)} tokens, at most {self.prompt_tokens}")
            for one, ids in zip(asks, prompts, strict=True)
        ]
        for index, completion in zip(fitting, completions, strict=True):
            text, _ = codec.decode(completion.response_ids.tolist())
            answers[index] = Answer(asks[index].prompt, text, cut=completion.finish_reason == "length")
        return answers

    def _seed(self, ask: Ask) -> int:
        text = hashlib.sha256(ask.prompt.encode()).hexdigest()
        further = (ask.sample,) if ask.sample else ()
        return seed_of("teacher", self.run_seed, text, *further)
