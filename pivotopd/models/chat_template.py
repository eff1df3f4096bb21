"""What a tokenizer's chat template does to our prompts, found by rendering probes, and the rule for each.

A prompt is one user message. The template's text around it, its *frame*, is read once; every message is put
into that frame as it stands. So nothing that a template does to messages reaches a prompt, and a template
whose frame is not one fixed text has no sound rule: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from jinja2 import TemplateError

from pivotopd.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MARKUP: Final = ("<think>", "</think>", "<action>", "</action>")
"""Tags that our prompts explain and replies are read by."""

_MESSAGE: Final = "\u241emessage\u241e"
_SYSTEM: Final = "\u241esystem\u241e"
_REPLY: Final = "<think>\u241ethought\u241e</think>\n<action>\u241eaction\u241e</action>"
_PROBES: Final = (
    "look",
    "x" * 5000,
    "Put the reasoning between <think> and </think>, then <action>go to shelf 1</action>.",
    "</think> <think>",
    "first\n\nsecond {{ third }} {% fourth %}",
    "caf\u00e9 \u2603 1,234 'quoted' \"twice\" <tag> & more",
)
"""Messages that a template must show inside one and the same frame."""
_EDGED: Final = "\n  \u241eedges\u241e  \n"
_OPEN: Final = re.compile(r"<think>\s*\Z")
_RANDOM: Final = re.compile(r"\|\s*random\b|\blipsum\s*\(")
_CLOCKS: Final = ("2001-02-03 04:05", "2036-11-29 22:47")
_RENDERS: Final = 4

SystemRole = Literal["accepted", "ignored", "refused"]
History = Literal["kept", "rewritten", "refused"]
Thinking = Literal["absent", "switched off", "empty block", "open tag"]

_RULES: Final[Mapping[str, Mapping[str, str]]] = {
    "system role": dict.fromkeys(
        ("accepted", "ignored", "refused"), "none is sent: all that a model is told is one user message"
    ),
    "system text of its own": {
        "none": "nothing to do",
        "added": "stays: it is part of every prompt, with and without a hint",
    },
    "earlier replies": dict.fromkeys(
        ("kept", "rewritten", "refused"),
        "none passes through the template: a turn's prompt holds its own history window",
    ),
    "thinking": {
        "absent": "nothing to do",
        "switched off": "enable_thinking=False is passed",
        "empty block": "the empty block stands before the reply, whose own <think> follows",
        "open tag": "the tag is cut off the prompt: the model writes it, so that the reply is complete",
    },
    "white space around a message": {
        "kept": "nothing to do",
        "trimmed": "the message is put into the template's frame as it stands",
    },
    "tags in a message": {
        "kept": "nothing to do",
        "changed": "the message is put into the template's frame as it stands",
    },
    "tags as tokens": {
        "text": "nothing to do",
        "special": "they count as text: a prompt and a decoded reply keep them",
    },
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a template.

    Attributes:
        what: What was looked at.
        found: What was found.
        rule: What is done about it.
    """

    what: str
    found: str
    rule: str


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """What a chat template does, as far as it concerns us; every field has its rule in :attr:`findings`.

    Without a template the fields after the first say nothing.

    Attributes:
        template: The tokenizer has a chat template; without one the message is the prompt.
        system_role: What becomes of a system message.
        system_text: The system text that the template adds by itself; None for none.
        history: What becomes of an earlier reply with its thought.
        thinking: What stands between the message and the reply with thinking switched off.
        edges: What becomes of white space around a message.
        markup: What becomes of our tags in a message.
        tags: What our tags are to the tokenizer.
    """

    template: bool = False
    system_role: SystemRole = "refused"
    system_text: str | None = None
    history: History = "refused"
    thinking: Thinking = "absent"
    edges: Literal["kept", "trimmed"] = "kept"
    markup: Literal["kept", "changed"] = "kept"
    tags: Literal["text", "special"] = "text"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every fact with the rule that is used."""
        if not self.template:
            rule = "a prompt is the message as plain text, then the separator token where there is one"
            return (Finding("chat template", "none", rule),)
        found = {
            "system role": self.system_role,
            "system text of its own": "none" if self.system_text is None else "added",
            "earlier replies": self.history,
            "thinking": self.thinking,
            "white space around a message": self.edges,
            "tags in a message": self.markup,
            "tags as tokens": self.tags,
        }
        return tuple(Finding(what, one, _RULES[what][one]) for what, one in found.items())

    @property
    def values(self) -> dict[str, Any]:
        """Plain values of all that was found, for a file."""
        fields = asdict(self) if self.template else {"template": False}
        return {**fields, "findings": [asdict(one) for one in self.findings]}


@dataclass(frozen=True, slots=True)
class Frame:
    """The text of a template before and after the one message, and what was found of the template."""

    before: str
    after: str
    report: TemplateReport


def read_frame(tokenizer: PreTrainedTokenizerFast) -> Frame:
    """Probe a tokenizer's chat template.

    Args:
        tokenizer: A tokenizer with a chat template.

    Raises:
        ConfigError: The template fails, does not show the message exactly once, or its frame changes with the
            message, the clock or chance; there is no sound rule then.
    """
    probe = _Probe(tokenizer)
    before, after = probe.frame()
    seen = before, after
    probe.check_fixed(seen)
    thinking, after = probe.thinking(after)
    system_role, system_text = probe.system(seen)
    return Frame(
        before,
        after,
        TemplateReport(
            template=True,
            system_role=system_role,
            system_text=system_text,
            history=probe.history(),
            thinking=thinking,
            edges="kept" if probe.shows(_EDGED, seen) else "trimmed",
            markup="kept" if all(probe.shows(text, seen) for text in _PROBES) else "changed",
            tags="special" if set(MARKUP) & set(tokenizer.all_special_tokens) else "text",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    tokenizer: PreTrainedTokenizerFast

    def render(self, messages: list[dict[str, str]], **more: Any) -> str:
        settings = {"enable_thinking": False} | more
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **settings
        )
        return text

    def tried(self, messages: list[dict[str, str]], **more: Any) -> str | None:
        """Return the rendered text, or None where the template does not take it."""
        try:
            return self.render(messages, **more)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            return None

    def message(self, text: str, **more: Any) -> str:
        """Render one user message."""
        try:
            return self.render([_user(text)], **more)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            self._refuse(f"it fails on one user message ({type(error).__name__}: {error})")

    def frame(self) -> tuple[str, str]:
        """Return the text before and after a message."""
        rendered = self.message(_MESSAGE)
        count = rendered.count(_MESSAGE)
        if count != 1:
            self._refuse("it does not show the user's message" if not count else f"it shows it {count} times")
        before, _, after = rendered.partition(_MESSAGE)
        return before, after

    def check_fixed(self, frame: tuple[str, str]) -> None:
        """Refuse a template whose frame is not one fixed text."""
        source = str(self.tokenizer.chat_template)
        again = {self.message(_MESSAGE) for _ in range(_RENDERS)}
        if len(again) > 1 or _RANDOM.search(source):
            self._refuse("it writes something random into the prompt")
        if len({self.message(_MESSAGE, strftime_now=_clock(now)) for now in _CLOCKS}) > 1:
            self._refuse("it writes the date or the time into the prompt")
        for text in (*_PROBES, _EDGED):
            middle = self._middle(text, frame)
            if text in middle and text != middle:
                self._refuse("it shows more of a message than the message")

    def shows(self, text: str, frame: tuple[str, str]) -> bool:
        """Tell whether a message appears as it stands."""
        return self._middle(text, frame) == text

    def _middle(self, text: str, frame: tuple[str, str]) -> str:
        """Return what a message has become inside the frame."""
        before, after = frame
        rendered = self.message(text)
        end = len(rendered) - len(after)
        if end < len(before) or not (rendered.startswith(before) and rendered.endswith(after)):
            self._refuse("what it writes around a message depends on the message")
        return rendered[len(before) : end]

    def thinking(self, after: str) -> tuple[Thinking, str]:
        """Return how a reply begins, and the text after the message, without a tag that is left open."""
        cut = _OPEN.sub("", after)
        last_open, last_close = cut.rfind("<think>"), cut.rfind("</think>")
        if last_open > last_close:
            self._refuse("it begins the model's thought for it")
        if cut != after:
            return "open tag", cut
        if last_close >= 0:
            return "empty block", after
        switched = self.message(_MESSAGE) != self.message(_MESSAGE, enable_thinking=True)
        return ("switched off" if switched else "absent"), after

    def system(self, frame: tuple[str, str]) -> tuple[SystemRole, str | None]:
        """Return what becomes of a system message, and the one that the template adds where there is none."""
        rendered = self.tried([{"role": "system", "content": _SYSTEM}, _user(_MESSAGE)])
        if rendered is None or _MESSAGE not in rendered:
            return "refused", None
        if _SYSTEM not in rendered:
            return "ignored", None
        start, _, rest = rendered.partition(_SYSTEM)
        alone = frame[0] + _MESSAGE + frame[1]
        added = len(alone) - len(start) - len(rest)
        if added > 0 and alone.startswith(start) and alone.endswith(rest):
            return "accepted", alone[len(start) : len(start) + added]
        return "accepted", None

    def history(self) -> History:
        """Return what becomes of an earlier reply."""
        reply = {"role": "assistant", "content": _REPLY}
        rendered = self.tried([_user("first"), reply, _user(_MESSAGE)])
        if rendered is None:
            return "refused"
        return "kept" if _REPLY in rendered else "rewritten"

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(
            f"the chat template gives no prompts to train on: {why}",
            where=str(self.tokenizer.name_or_path) or "chat_template",
            mend="edit the model's chat_template.jinja so that it shows one user message in one fixed frame "
            "(a date as a fixed text), or use an instruct model's template",
        )


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _clock(now: str) -> Callable[[str], str]:
    """Return what a template gets as ``strftime_now``: one fixed time, in whatever format."""
    return lambda form: f"{now} {form}"
