"""Answered requests on disk: what was paid for once is not asked again, by this run or another.

A file is named by the sha256 of what decides the answer: model, messages, sampling. It holds the request too,
so that a prompt can be looked up. Files are written whole; two writers of one name leave one of both answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from pivotopd.blobs import Blobs
from pivotopd.manifest import canonical_json
from pivotopd.teacher.replies import well_formed


class StoredReply(BaseModel):
    """An answered request."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    version: int = 1
    """Version of this form."""
    request: dict[str, Any]
    """What decided the answer."""
    text: str
    """The reply."""
    prompt_tokens: int
    """Tokens of the prompt, by the server's count; 0 where it told none."""
    reply_tokens: int
    """Tokens of the reply, reasoning included."""
    cut: bool = False
    """It ended at the limit of its length."""


@dataclass(frozen=True, slots=True)
class ReplyCache:
    """Replies by their request.

    Args:
        blobs: Where the files lie.
        prefix: Folder below.
    """

    blobs: Blobs
    prefix: str = ""

    @classmethod
    def at(cls, root: str, folder: str | None) -> Self:
        """Return the cache in a folder of its own, or the one that all runs under a root share."""
        return cls(Blobs(root), "shared/teacher_cache/") if folder is None else cls(Blobs(folder))

    def get(self, request: Mapping[str, Any]) -> StoredReply | None:
        """Return the reply to a request; a damaged file counts as none and is replaced later.

        Raises:
            StorageError: The cache cannot be read.
        """
        data = self.blobs.read(self._path(request))
        try:
            return None if data is None else StoredReply.model_validate_json(data)
        except ValidationError:
            return None

    def put(self, reply: StoredReply) -> None:
        """Keep a reply.

        Raises:
            StorageError: The cache cannot be written.
        """
        text = reply.model_copy(update={"text": well_formed(reply.text)}).model_dump_json()
        self.blobs.write(self._path(reply.request), text.encode())

    def _path(self, request: Mapping[str, Any]) -> str:
        key = hashlib.sha256(canonical_json(dict(request)).encode()).hexdigest()
        return f"{self.prefix}{key[:2]}/{key}.json"
