"""The paper's prompt form: role, task, recent history, observation, admissible actions, instructions.

Structure after the paper's App. D.4; one form for the first turn, one for later turns.
"""

from __future__ import annotations

from typing import Final

from pivotopd.environments.alfworld.replies import ReplyRules
from pivotopd.environments.base import View

_HINT_MARK: Final = "A reasonable approach at this step is:"
_LESSON_MARK: Final = "What earlier attempts at this task taught:"

_REFLECT_MARK: Final = "Before you act, look back at what you have done so far."
_SKILL_MARK: Final = "Skills that earlier play in this household taught:"
_MARKS: Final = (_HINT_MARK, _REFLECT_MARK, _LESSON_MARK)

_ROLE: Final = "You are a skilled agent acting in the household world of ALFRED."
_TURN: Final = (
    "Now it's your turn to choose an action.\n"
    "First reason step by step about where things stand. Put this reasoning between <think> and </think>.\n"
    "When you have reasoned, choose one admissible action for this step and put it between <action> and "
    "</action>."
)
_HINT: Final = (
    _HINT_MARK + " {action}\n"
    "Reason from scratch and in your own style, as if you had found this action yourself. Do not refer to, "
    "acknowledge or quote this passage."
)
_REFLECT: Final = (
    _REFLECT_MARK + " Ask which of your steps helped the task, which did not, and what follows now.\n"
    "Reason from scratch and in your own style. Do not refer to, acknowledge or quote this passage."
)


class FullWording(ReplyRules):
    """The prompt of the paper, for language models."""

    def prompt(self, view: View) -> str:
        """Render a view as one user message.

        Skills stand in front; a lesson after the task; a hint just before the closing part that asks for
        the action.
        """
        parts = [] if not view.skills else ["\n".join([_SKILL_MARK, *map(_item, view.skills)])]
        parts.append(self._first(view) if view.turn == 0 else self._later(view))
        if view.hint is not None:
            parts.append(_HINT.format(action=view.hint) if view.hint else _REFLECT)
        parts.append(_TURN)
        return "\n\n".join(parts)

    def privileged(self, prompt: str, *, skills_allowed: bool = False) -> bool:
        """Tell whether a prompt holds a hint, a lesson, or skills that it must not hold."""
        return any(mark in prompt for mark in _MARKS) or (_SKILL_MARK in prompt and not skills_allowed)

    def _first(self, view: View) -> str:
        """Render the first turn: the opening observation tells the task."""
        lines = [_ROLE, f"Your current observation is: {_bare(view.observation)}"]
        return "\n".join([*lines, *_lesson(view), *_admissible(view)])

    def _later(self, view: View) -> str:
        """Render a later turn: task, number of steps, the pairs in the window, the current observation."""
        lines = [f"{_ROLE} Your task is to: {_bare(view.instruction)}", *_lesson(view)]
        first = view.turn - len(view.history) + 1
        pairs = " ".join(
            f"[Observation {number}: '{_bare(observation)}', Action {number}: '{_bare(action)}']"
            for number, (observation, action) in enumerate(view.history, start=first)
        )
        taken = f"Before this step you have taken {view.turn} step(s)."
        if pairs:
            taken += (
                f" Your last {len(view.history)} observation(s) and the actions that you answered: {pairs}"
            )
        lines += [
            taken,
            f"You are now at step {view.turn + 1}. Your current observation is: {_bare(view.observation)}",
        ]
        return "\n".join([*lines, *_admissible(view)])


def _item(skill: str) -> str:
    return f"* {_bare(skill)}"


def _lesson(view: View) -> list[str]:
    return [] if view.lesson is None else [f"{_LESSON_MARK} {view.lesson}"]


def _admissible(view: View) -> list[str]:
    """List the admissible actions; ``help`` only explains the commands and is left out."""
    if view.admissible is None:
        return []
    listed = ",\n ".join(f"'{action}'" for action in view.admissible if action != "help")
    return [f"The admissible actions in this situation are: [{listed}]."]


def _bare(text: str) -> str:
    """Take the marks of privileged text out of played text, so that no plain prompt can look privileged."""
    for mark in (*_MARKS, _SKILL_MARK):
        text = text.replace(mark, "...")
    return text
