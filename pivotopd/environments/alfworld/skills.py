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
_REFUSED: Final = "Nothing happens."


def distil(episode: PlayedEpisode) -> str | None:
    """Return the skill of an episode, or None where it did nothing.

    A won episode gives its commands in order, without numbers, what was refused, idle commands, and walks
    that led nowhere: of several ``go to`` in a row the last one stays. A lost one gives the command that it
    sent most often, the first of equals.
    """
    acted = _acted(episode)
    if episode.won:
        return "; ".join(_without_detours(acted)) or None
    sent = [_kinds(turn.action) for turn in episode.turns if turn.committed]
    if not sent:
        return None
    most, _ = Counter(sent).most_common(1)[0]  # the first one among equals
    return f"do not repeat: {most}"


def _acted(episode: PlayedEpisode) -> list[str]:
    """Return the commands that the world took, in kinds."""
    answers = [turn.observation for turn in episode.turns[1:]] + [episode.last_observation or ""]
    return [
        _kinds(turn.action)
        for turn, answer in zip(episode.turns, answers, strict=True)
        if _counts(turn, answer)
    ]


def _counts(turn: PlayedTurn, answer: str) -> bool:
    verb = turn.action.partition(" ")[0]
    return turn.committed and answer != _REFUSED and verb not in _IDLE and verb != "examine"


def _kinds(action: str) -> str:
    """Return a command without numbers and on one line."""
    return " ".join(_NUMBER.sub("", action).split())


def _without_detours(commands: Sequence[str]) -> list[str]:
    """Keep of several walks in a row the last one, and of equal commands in a row the first."""
    kept: list[str] = []
    for command in commands:
        walks = bool(kept) and command.startswith("go to ") and kept[-1].startswith("go to ")
        if kept and (walks or kept[-1] == command):
            kept.pop()
        kept.append(command)
    return kept
