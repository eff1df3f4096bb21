"""What a teacher that is a language model needs of whoever runs it: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pivotopd.ledger import Counts


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        prompt: One user message.
        json_prompt: The same request for a JSON reply, for a chat that can enforce a schema.
        schema: That JSON's schema.
        sample: Number of the draw: the same request with another number is asked anew.
    """

    prompt: str
    json_prompt: str | None = None
    schema: Mapping[str, Any] | None = None
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        prompt: The message that was sent.
        text: The reply; None where there is none.
        failure: Why there is none.
        cut: The reply ended at the limit of its length.
    """

    prompt: str
    text: str | None
    failure: str | None = None
    cut: bool = False


class Chat(Protocol):
    """Answers requests."""

    name: str
    where: str

    @property
    def spent(self) -> Counts:
        """What it used so far: the fields ``teacher_*``."""
        ...

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Return one answer a request, in order. A request that fails is an answer without text.

        Raises:
            TeacherError: No request can succeed.
        """
        ...
