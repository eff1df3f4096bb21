"""A teacher's reply as text, read: summary, lesson, and the actions that it would have taken.

Replies come as they come: a JSON object fenced or bare, with chatter around it, reasoning before it, an
example of the form before the real one, commas too many. Reading is total: every text gives a reply, or a
reason why it is none (docs/method.md, Labelling).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pivotopd.teacher.json_text import objects

LONGEST: Final = 200_000
"""Characters beyond which a reply is not read: replies are bounded by `teacher.reply_tokens`."""
ACTION_CHARACTERS: Final = 300
"""Characters that an action may have."""
SENTENCES_CHARACTERS: Final = 400
"""Characters of a summary or a lesson, where a server enforces the schema."""
STEP_CHARACTERS: Final = 200
"""Characters of a step's lesson and of its action there."""
SKILL_CHARACTERS: Final = 600
"""Characters that a skill may have; it shares the extra tokens of a prompt with others."""

_KEYS: Final = ("episode_lesson", "episode_summary", "step_lessons", "correct_actions")
_INDEX: Final = re.compile(r"[^0-9-]{0,16}([0-9]{1,6})\D{0,16}")
_OPEN: Final = re.compile(
    r"<correct_action(?:\s+step\s*=\s*\\?[\"']?\s*(?P<step>[^\"'<>\\]{0,32}?)\s*\\?[\"']?)?\s*>",
    re.IGNORECASE,
)
_CLOSE: Final = re.compile(r"</correct_action\s*>", re.IGNORECASE)
_TAG: Final = re.compile(r"</?action>", re.IGNORECASE)


def label_schema(max_candidates: int) -> dict[str, Any]:
    """Return the JSON schema of a labelling reply in the form ``json``, for servers that enforce one.

    It bounds every length, or a weak model that repeats itself never comes to the closing brace.

    Args:
        max_candidates: m, most turns that are named.
    """
    sentences = {"type": "string", "maxLength": SENTENCES_CHARACTERS}
    step = {
        "type": "object",
        "properties": {
            "step": {"type": "integer"},
            "lesson": {"type": "string", "maxLength": STEP_CHARACTERS},
            "correct_action": {"type": "string", "maxLength": STEP_CHARACTERS},
        },
        "required": ["step", "lesson", "correct_action"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "episode_summary": sentences,
            "episode_lesson": sentences,
            "step_lessons": {"type": "array", "maxItems": max_candidates, "items": step},
        },
        "required": ["episode_summary", "episode_lesson", "step_lessons"],
        "additionalProperties": False,
    }


def _text(value: Any) -> str | None:
    """Return a sentence on one line, or None for what is none."""
    if not isinstance(value, str):
        return None
    flat = " ".join(well_formed(value).split())
    return None if flat.lower() in {"", "none", "null", "n/a", "..."} else flat


def _index(value: Any) -> int | None:
    """Return a turn's index: 3, "3", "step 3"; None for what is none, such as -1."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    match = _INDEX.fullmatch(str(value).strip()) if not isinstance(value, int) or 0 <= value < 10**6 else None
    return int(match.group(1)) if match else None


def _by_step(name: str) -> BeforeValidator:
    """Read ``{"3": x}``, ``[{"step": 3, name: x}]`` or ``[[3, x]]`` as (index, x) pairs; leave out others."""

    def read(value: Any) -> list[tuple[int, str]]:
        pairs: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            pairs = [(step, one.get(name) if isinstance(one, dict) else one) for step, one in value.items()]
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, dict):
                    pairs.append((one.get("step", one.get("turn")), one.get(name)))
                elif isinstance(one, list) and len(one) == 2:
                    pairs.append((one[0], one[1]))
        read_ones = ((_index(step), _text(one)) for step, one in pairs)
        return [(step, one) for step, one in read_ones if step is not None and one is not None]

    return BeforeValidator(read)


class LabelReply(BaseModel):
    """A labelling reply, read. Indices are not checked against an episode."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    episode_summary: Annotated[str | None, BeforeValidator(_text)] = None
    """What happened."""
    episode_lesson: Annotated[str | None, BeforeValidator(_text)] = None
    """The lesson."""
    step_lessons: Annotated[tuple[tuple[int, str], ...], _by_step("lesson")] = ()
    """(turn, sentence), in the reply's order."""
    correct_actions: Annotated[tuple[tuple[int, str], ...], _by_step("action")] = Field(default=())
    """(turn, action as written), in the reply's order, each turn once."""


class Unreadable(ValueError):
    """A reply says nothing that can be used; its text is the reason."""


def read_label_reply(text: str) -> LabelReply:
    """Read a labelling reply.

    Of several JSON objects with a known key the one with most of them counts, of equals the last: an example
    of the form comes before what is meant. Of several actions for one turn the first counts. A reply without
    JSON that names actions is read; so is one that names none.

    Raises:
        Unreadable: There is neither; the only error that is raised, whatever the text.
    """
    if not text.strip():
        raise Unreadable("the reply is empty")
    if len(text) > LONGEST:
        raise Unreadable(f"the reply has {len(text)} characters")
    for part in _parts(text):
        reply = _read(part)
        if reply is not None:
            return reply
    raise Unreadable("the reply holds neither the JSON object nor an action block")


def read_query_reply(text: str) -> str:
    """Read the action of a recovery query: the last block, or a reply that is one short line and no more.

    Raises:
        Unreadable: There is neither.
    """
    if not text.strip():
        raise Unreadable("the reply is empty")
    if len(text) > LONGEST:
        raise Unreadable(f"the reply has {len(text)} characters")
    for part in _parts(text):
        named = [action for _, action in _blocks(part)]
        if named:
            return named[-1]
    bare = _parts(text)[0].strip()
    if bare and len(bare) <= ACTION_CHARACTERS and "\n" not in bare and "<" not in bare:
        return _action(bare)
    raise Unreadable("the reply holds no action block")


def read_analysis_reply(text: str) -> LabelReply:
    """Read an analysis: the skills stand where a labelling reply has its lessons, and no action is named.

    Raises:
        Unreadable: No JSON object has a skill; the only error that is raised, whatever the text.
    """
    if not text.strip():
        raise Unreadable("the reply is empty")
    if len(text) > LONGEST:
        raise Unreadable(f"the reply has {len(text)} characters")
    for part in _parts(text):
        found = [
            reply for one in objects(part, ("episode_skill", "step_skills")) if (reply := _analysis(one))
        ]
        if found:
            return found[-1]
    raise Unreadable("the reply holds no JSON object with a skill")


def _analysis(found: dict[str, Any]) -> LabelReply | None:
    """Return one object's skills, each turn once; None where it has none that may be shown."""
    named = found.get("step_skills")
    if isinstance(named, list):
        named = [{**one, "lesson": one.get("skill")} if isinstance(one, dict) else one for one in named]
    try:
        reply = LabelReply.model_validate(
            {
                "episode_summary": found.get("episode_summary"),
                "episode_lesson": found.get("episode_skill"),
                "step_lessons": named,
            }
        )
    except ValidationError:
        return None
    steps: dict[int, str] = {}
    for step, sentence in reply.step_lessons:
        if len(sentence) <= SKILL_CHARACTERS:
            steps.setdefault(step, sentence)
    lesson = reply.episode_lesson
    lesson = lesson if lesson is not None and len(lesson) <= SKILL_CHARACTERS else None
    if lesson is None and not steps:
        return None
    return reply.model_copy(update={"episode_lesson": lesson, "step_lessons": tuple(steps.items())})


def read_skill_reply(text: str) -> str:
    """Read a skill: of several JSON objects that hold one, the last.

    Raises:
        Unreadable: There is none, or it is longer than a skill may be.
    """
    if not text.strip():
        raise Unreadable("the reply is empty")
    if len(text) > LONGEST:
        raise Unreadable(f"the reply has {len(text)} characters")
    for part in _parts(text):
        found = [skill for one in objects(part, ("skill",)) if (skill := _text(one.get("skill")))]
        if found and len(found[-1]) > SKILL_CHARACTERS:
            raise Unreadable(f"the skill has {len(found[-1])} characters, at most {SKILL_CHARACTERS} may be")
        if found:
            return found[-1]
    raise Unreadable("the reply holds no JSON object with a skill")


def well_formed(text: str) -> str:
    """Return text that UTF-8 can hold: half a surrogate pair is written as an escape."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _parts(text: str) -> list[str]:
    """Return what to read, in order: what follows the reasoning, else everything.

    Reasoning stands at the start between tags; some servers swallow the opening one.
    """
    lead = text.lstrip()
    if lead.startswith("<think>"):
        rest = lead.partition("</think>")[2]
        return [rest] if rest.strip() else [""]
    before, closed, rest = text.rpartition("</think>")
    return [rest, text] if closed and before else [text]


def _read(text: str) -> LabelReply | None:
    best: LabelReply | None = None
    known = 0
    for found in objects(text, _KEYS):
        count = sum(key in found for key in _KEYS)
        if count >= known:
            try:
                best, known = LabelReply.model_validate(_with_actions(found)), count
            except ValidationError:
                continue
    blocks = [(step, action) for step, action in _blocks(text) if step is not None]
    if best is None and not blocks:
        return None
    best = best or LabelReply()
    actions: dict[int, str] = {}
    for step, action in (*blocks, *best.correct_actions):
        actions.setdefault(step, action)
    lessons: dict[int, str] = {}
    for step, sentence in best.step_lessons:
        lessons.setdefault(step, sentence)
    return best.model_copy(
        update={"step_lessons": tuple(lessons.items()), "correct_actions": tuple(actions.items())}
    )


def _with_actions(found: dict[str, Any]) -> dict[str, Any]:
    """Take actions out of step lessons where the JSON form puts them."""
    steps = found.get("step_lessons")
    if "correct_actions" in found or not isinstance(steps, list | dict):
        return found
    entries = steps if isinstance(steps, list) else [
        {"step": step, **one} for step, one in steps.items() if isinstance(one, dict)
    ]  # fmt: skip
    actions = [
        {"step": one.get("step", one.get("turn")), "action": one["correct_action"]}
        for one in entries
        if isinstance(one, dict) and "correct_action" in one
    ]
    return {**found, "correct_actions": actions}


def _blocks(text: str) -> list[tuple[int | None, str]]:
    """Return (step, action) of every closed action block that names something, in order."""
    opened = list(_OPEN.finditer(text))
    found: list[tuple[int | None, str]] = []
    for number, match in enumerate(opened):
        limit = opened[number + 1].start() if number + 1 < len(opened) else len(text)
        closed = _CLOSE.search(text, match.end(), limit)
        if closed is None or closed.start() - match.end() > 4 * ACTION_CHARACTERS:
            continue
        action = _action(text[match.end() : closed.start()])
        if action and len(action) <= ACTION_CHARACTERS:
            found.append((_index(match["step"]), action))
    return found


def _action(text: str) -> str:
    """Return an action on one line, without the tags and quotes that it should not have."""
    return " ".join(well_formed(_TAG.sub(" ", text)).split()).strip("\"'`“”").strip()
