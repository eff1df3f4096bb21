"""How a student's reply is read, and what a hint looks like when it shows: the same for every prompt form."""

from __future__ import annotations

import re
from typing import Final

from pivotopd.environments.base import Reply

FALLBACK_CHARACTERS: Final = 30
"""Characters from the end of a reply that are sent where it holds no action block, as in verl-agent."""

_CJK: Final = re.compile(
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3040-\u30ff\u3100-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U00020000-\U0003ffff]"
)

_ACTION: Final = re.compile("<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)

_LEAKS: Final = re.compile(
    r"\bhint"
    r"|suggest"
    r"|\b(?:provided|given)\s+(?:approach|action)"
    r"|reasonable\s+approach\s+at\s+this\s+step"
    r"|\bwas\s+told\b"
    r"|instructions?\s+above",
    re.IGNORECASE,
)
"""The paper's three families: a hint, a suggestion, a provided approach (App. B)."""


def parse_reply(response: str) -> Reply:
    """Read a response by ALFWorld's reply rules, those of verl-agent. Every text gives a reply.

    Args:
        response: The decoded response, without special tokens.

    Returns:
        The reply. Its action is lower-cased; without an action block it is the end of the response, which
        is sent all the same but is neither committed nor valid. Whether the environment admits the action
        is not looked at.
    """
    text = response.lower()
    thought, action = _block(text, "think"), _block(text, "action")
    committed = bool(action.strip())  # an empty block names nothing
    if not committed:
        action = text[-FALLBACK_CHARACTERS:]
    thinks = "<think>" in text and "</think>" in text
    valid = committed and thinks and _CJK.search(response) is None
    return Reply(action=action.strip(), committed=committed, valid=valid, thought=thought.strip())


def _block(text: str, tag: str) -> str:
    """Return what stands between the first opening tag and the first closing tag after it, else nothing."""
    _, opened, rest = text.partition(f"<{tag}>")
    inside, closed, _ = rest.partition(f"</{tag}>")
    return inside if opened and closed else ""


def action_span(response: str) -> tuple[int, int] | None:
    """Return where the committed action stands in a response, without the blanks around it.

    Args:
        response: The decoded response, without special tokens.

    Returns:
        The first character and the one after the last, or None where the response commits to no action.
    """
    found = _ACTION.search(response)
    if found is None or not found[1].strip():
        return None
    start = found.start(1) + len(found[1]) - len(found[1].lstrip())
    return start, start + len(found[1].strip())


def normal_form(action: str) -> str:
    """Return the form in which actions are compared: lower case, single blanks, none around."""
    return " ".join(action.lower().split())


def mentions_hint(response: str) -> bool:
    """Tell whether a response speaks of a hint, a suggestion or a provided approach."""
    return _LEAKS.search(response) is not None


class ReplyRules:
    """The part of a wording that every prompt form shares: how replies are read."""

    def parse(self, response: str) -> Reply:
        """Read a response; see :func:`parse_reply`."""
        return parse_reply(response)

    def action_span(self, response: str) -> tuple[int, int] | None:
        """Return where the committed action stands in a response, or None without one."""
        return action_span(response)

    def normal_form(self, action: str) -> str:
        """Return the form in which two actions are compared."""
        return normal_form(action)

    def leaks(self, response: str) -> bool:
        """Tell whether a recovery response mentions its hint."""
        return mentions_hint(response)
