"""Skills by fixed rules: what a won episode did, told in kinds of things, or what a lost one did too often.

For laptops and tests, beside the oracle teacher. A language model writes better ones (``skill_prompt``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pivotopd.environments.base import PlayedEpisode, PlayedTurn

_NUMBER: Final = re.compile(r" \d+\b")
_IDLE: Final = frozenset({"look", "inventory", "help"})
_WALK: Final = "go to "
_REFUSED: Final = "Nothing happens."


def distil(episode: PlayedEpisode) -> str | None:
    """Return the skill of an episode, or None where it did nothing.

    A won episode gives its commands in order, without numbers, what was refused, idle commands, and visits
    at which nothing was taken, left or used. A lost one gives the command that it sent most often, the first
    of equals.
    """
    acted = _acted(episode)
    if episode.won:
        return workflow(_without_detours(acted)) or None
    sent = [kinds(turn.action) for turn in episode.turns if turn.committed]
    if not sent:
        return None
    most, _ = Counter(sent).most_common(1)[0]  # the first one among equals
    return avoidance(most)


def workflow(commands: Sequence[str]) -> str:
    """Return the skill that names commands in order."""
    return "; ".join(commands)


def avoidance(command: str) -> str:
    """Return the skill that warns of a command."""
    return f"do not repeat: {command}"


def kinds(action: str) -> str:
    """Return a command without numbers and on one line."""
    return " ".join(_NUMBER.sub("", action).split())


def _acted(episode: PlayedEpisode) -> list[str]:
    """Return the commands that the world took, in kinds."""
    answers = [turn.observation for turn in episode.turns[1:]] + [episode.last_observation or ""]
    return [
        kinds(turn.action)
        for turn, answer in zip(episode.turns, answers, strict=True)
        if _counts(turn, answer)
    ]


def _counts(turn: PlayedTurn, answer: str) -> bool:
    verb = turn.action.partition(" ")[0]
    return turn.committed and answer != _REFUSED and verb not in _IDLE and verb != "examine"


def _without_detours(commands: Sequence[str]) -> list[str]:
    """Leave out visits that only looked: a walk, what it opened or closed, and then another walk."""
    kept: list[str] = []
    for command in commands:
        while command.startswith(_WALK) and kept and kept[-1].startswith((_WALK, "open ", "close ")):
            kept.pop()
        kept.append(command)
    return kept
