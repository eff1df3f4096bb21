"""The OpenAI chat protocol: a request as JSON, a response as a reply or as a reason why it is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

TRANSIENT: Final = frozenset({408, 409, 425, 429})
"""Status codes below 500 that another try may mend."""
REFUSED: Final = frozenset({400, 413, 422})
"""Status codes that concern one request, such as a prompt above the model's context."""
_BOUNDS: Final = frozenset({"maxLength", "maxItems"})
SHOWN_CHARACTERS: Final = 300
"""Characters of a server's text that an error repeats."""


class Transient(Exception):
    """A try failed in a way that may pass.

    Attributes:
        retry_after_s: Seconds that the server asks to wait.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Unreachable(Transient):
    """Nothing answered the call."""


class Refused(Exception):
    """The server does not take this request; others may pass."""


class Fatal(Exception):
    """The server takes no request: key, model or address are wrong."""


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Message(_Lenient):
    content: str | None = None


class _Choice(_Lenient):
    message: _Message
    finish_reason: str | None = None


class _PromptDetails(_Lenient):
    cached_tokens: int | None = None


class _Usage(_Lenient):
    prompt_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens: int | None = None


class _Completion(_Lenient):
    choices: tuple[_Choice, ...]
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A reply, the server's count of its tokens, and whether it ended at the limit.

    ``cached_tokens`` of the prompt's were in the server's prefix cache, where it says so.
    """

    text: str
    prompt_tokens: int
    reply_tokens: int
    cut: bool = False
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Dialect:
    """How servers differ.

    Attributes:
        limit: Name of the reply limit; newer OpenAI models take only ``max_completion_tokens``.
        schema: The server enforces a JSON schema.
        bounds: It takes the longest lengths in one; OpenAI's own does not know ``maxLength``.
    """

    limit: str = "max_tokens"
    schema: bool = True
    bounds: bool = True

    def adapted(self, refusal: str, used_schema: bool) -> Dialect:
        """Return the dialect to try after a refusal: this one where nothing is left to change."""
        if self.limit == "max_tokens" and "max_completion_tokens" in refusal:
            return replace(self, limit="max_completion_tokens")
        if used_schema and self.bounds and any(name in refusal for name in _BOUNDS):
            return replace(self, bounds=False)
        marks = ("response_format", "json_schema", "schema", "guided", "structured")
        if used_schema and any(mark in refusal.lower() for mark in marks):
            return replace(self, schema=False)
        return self


def body_of(request: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return the JSON body of a request (model, messages, temperature, reply_tokens, schema)."""
    body: dict[str, Any] = {
        "model": request["model"],
        "messages": request["messages"],
        dialect.limit: request["reply_tokens"],
    }
    if request["temperature"] is not None:
        body["temperature"] = request["temperature"]
    if request["schema"] is not None:
        wanted = request["schema"] if dialect.bounds else _without_bounds(request["schema"])
        schema = {"name": "reply", "schema": wanted, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _without_bounds(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _without_bounds(value) for key, value in schema.items() if key not in _BOUNDS}
    return schema


def read_response(response: httpx.Response, clean: Callable[[str], str] = str) -> Received:
    """Return the reply in a response.

    Args:
        response: The response.
        clean: Takes a secret out of a text; before it is cut or quoted, so that no part of one remains.

    Raises:
        Transient: Another try may help: busy, broken, or not a chat completion.
        Refused: The server does not take this request.
        Fatal: It would take none.
    """
    status = response.status_code
    if status == 200:
        try:
            completion = _Completion.model_validate_json(response.content)
        except ValidationError:
            raise Transient(f"no chat completion: {shown(clean(response.text))!r}") from None
        if not completion.choices:
            raise Transient("a chat completion without a choice")
        usage = completion.usage or _Usage()
        choice = completion.choices[0]
        text, cut = clean(choice.message.content or ""), choice.finish_reason == "length"
        cached = (usage.prompt_tokens_details or _PromptDetails()).cached_tokens or 0
        return Received(text, usage.prompt_tokens or 0, usage.completion_tokens or 0, cut, cached)
    reason = f"status {status}: {shown(clean(response.text))!r}"
    if status in TRANSIENT or status >= 500:
        raise Transient(reason, _retry_after_s(response.headers.get("retry-after")))
    raise Refused(reason) if status in REFUSED else Fatal(reason)


def shown(text: str) -> str:
    """Return the beginning of a server's text on one line."""
    flat = " ".join(text[: 8 * SHOWN_CHARACTERS].split())
    return flat if len(flat) <= SHOWN_CHARACTERS else f"{flat[:SHOWN_CHARACTERS]}..."


def _retry_after_s(value: str | None) -> float:
    """Read Retry-After: seconds, or a date (RFC 9110, 10.2.3); 0 for what is neither."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
