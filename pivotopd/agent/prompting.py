"""From an episode so far to prompt ids: the history window, the length limit, hint and lesson.

One turn is one prompt, rebuilt from the last ``history`` observation/action pairs (paper App. D.4).
A prompt that is too long loses its oldest pairs first. A hint or lesson may add up to ``HINT_TOKENS`` and
never displaces the base part: the history is the one that the unhinted prompt kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pivotopd.environments.base import View, Wording
from pivotopd.errors import ArtifactError
from pivotopd.models.base import Codec
from pivotopd.records import Turn

HINT_TOKENS = 256
"""Tokens by which a prompt with a hint, a lesson or skills may pass the prompt limit."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready for an engine, with the view it shows."""

    ids: list[int]
    view: View


@dataclass(frozen=True)
class Prompter:
    """Builds prompts for one environment and one tokenizer.

    Args:
        wording: The environment's text.
        codec: The student's tokenizer.
        history: Earlier pairs shown at most.
        prompt_tokens: Longest prompt without hint.
        hint_form: ``reflection`` leaves the action out of every hint (an ablation).
    """

    wording: Wording
    codec: Codec
    history: int
    prompt_tokens: int
    hint_form: Literal["action", "reflection"] = "action"

    def plain(
        self,
        instruction: str,
        pairs: Sequence[tuple[str, str]],
        turn: int,
        observation: str,
        admissible: tuple[str, ...] | None,
        skills: tuple[str, ...] = (),
    ) -> Prompt | None:
        """Return the unprivileged prompt of a turn, or None when it is too long even without history.

        Skills change nothing else: the history is the one that fits without them.

        Args:
            instruction: The task.
            pairs: All (observation, action) pairs so far, oldest first.
            turn: Index of the turn.
            observation: Current observation.
            admissible: Admissible actions, or None.
            skills: Skills that training prompts hold; those that do not fit are left out.
        """
        kept = tuple(pairs[-self.history :]) if self.history else ()
        while True:
            view = View(instruction, kept, turn, observation, admissible)
            ids = self.codec.encode_prompt(self.wording.prompt(view))
            if len(ids) <= self.prompt_tokens:
                prompt = Prompt(ids, view)
                return self.skilled(prompt, skills) or prompt
            if not kept:
                return None
            kept = kept[1:]

    def skilled(self, prompt: Prompt, skills: tuple[str, ...]) -> Prompt | None:
        """Return the same prompt with skills in front of the task, the last ones left out until it fits.

        None where not even one fits, or there is none.
        """
        for count in range(len(skills), 0, -1):
            view = replace(prompt.view, skills=skills[:count])
            ids = self.codec.encode_prompt(self.wording.prompt(view))
            if len(ids) <= self.prompt_tokens + HINT_TOKENS:
                return Prompt(ids, view)
        return None

    def rebuilt(self, turns: Sequence[Turn], index: int) -> Prompt:
        """Return the unprivileged prompt of a recorded turn, with its view.

        Args:
            turns: The episode's own turns, from its first.
            index: Index of the turn.

        Raises:
            ArtifactError: It is not the recorded prompt: the row comes from other settings.
        """
        now = turns[index]
        pairs = [(past.observation, past.action) for past in turns[:index]]
        admissible = None if now.admissible is None else tuple(now.admissible)
        prompt = self.plain(now.instruction, pairs, now.turn, now.observation, admissible)
        if prompt is None or prompt.ids != list(now.prompt_ids):
            raise ArtifactError(
                f"the recorded prompt of episode {now.episode}, turn {now.turn} cannot be rebuilt",
                mend="tokenizer, prompt or history settings are not the rollout's; rerun that stage",
            )
        return prompt

    def hinted(
        self, prompt: Prompt, *, hint: str | None = None, lesson: str | None = None
    ) -> list[int] | None:
        """Return the ids of the same prompt with a hint or lesson, or None when it is too long."""
        if hint is not None and self.hint_form == "reflection":
            hint = ""
        view = replace(prompt.view, hint=hint, lesson=lesson)
        ids = self.codec.encode_prompt(self.wording.prompt(view))
        return ids if len(ids) <= self.prompt_tokens + HINT_TOKENS else None
