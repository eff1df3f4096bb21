"""Text to token ids and back, for one Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pivotopd.errors import ArtifactError
from pivotopd.models.chat_template import MARKUP, TemplateReport, read_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenizerCodec:
    """Encodes one user message to a prompt, and decodes responses without losing a byte.

    With a chat template the message is one user turn, followed by the generation prompt, thinking switched
    off where the template knows it (:mod:`pivotopd.models.chat_template`). Without one it is the message,
    then the separator token if there is one. A message that holds the text of a special token never yields
    that token: it cannot forge a turn. The tags of replies (``<think>``) are no such tokens, whatever the
    tokenizer says: prompts and decoded replies keep them.

    Args:
        tokenizer: A fast tokenizer with an end token.

    Attributes:
        fingerprint: SHA-256 of all that decides the ids: the tokenizer's content, its special tokens and its
            chat template.
        template: What the chat template does, and the rules for it.

    Raises:
        ArtifactError: The tokenizer has no end token.
        ConfigError: Its chat template gives no reproducible prompts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if tokenizer.eos_token_id is None:
            raise ArtifactError(
                "the tokenizer has no end token",
                where=str(tokenizer.name_or_path),
                mend="set eos_token in tokenizer_config.json",
            )
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint_of(tokenizer)
        self._decoder = json.dumps(_content_of(tokenizer).get("decoder"))
        markup = set(tokenizer.convert_tokens_to_ids([tag for tag in MARKUP if tag in tokenizer.get_vocab()]))
        self._special_ids = frozenset(tokenizer.all_special_ids) - markup
        added = tokenizer.added_tokens_decoder.values()
        self._added = frozenset(str(token) for token in added)
        self._special_texts = tuple(str(one) for one in added if one.special and str(one) not in MARKUP)
        self.template = TemplateReport()
        self._around: tuple[str, str] | None = None
        if tokenizer.chat_template:
            frame = read_frame(tokenizer)
            self.template, self._around = frame.report, (frame.before, frame.after)
            self._frame = self._encode(frame.before, specials=True), self._encode(frame.after, specials=True)
        else:
            self._frame = self._plain_frame()

    def encode_prompt(self, message: str) -> list[int]:
        """Return the ids of one user message. Unpaired surrogates are written as escapes."""
        message = _well_formed(message)
        if self._around is not None and not any(text in message for text in self._special_texts):
            # The whole text at once: the ids of the model's own training, also where message and frame meet.
            return self._encode(message.join(self._around), specials=True)
        before, after = self._frame
        return [*before, *self._encode(message, specials=False), *after]

    def encode_response(self, text: str) -> list[int]:
        """Return the ids of a written response, end token included."""
        return [*self._encode(_well_formed(text), specials=False), int(self.tokenizer.eos_token_id)]

    def decode(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return the text without special tokens, and whether it had to be escaped.

        Bytes that are not UTF-8 appear as hexadecimal escapes; an id that the tokenizer does not know (models
        often have more rows than tokens) appears as nothing and counts as escaped.
        """
        kept = [int(index) for index in ids if int(index) not in self._special_ids]
        size = len(self.tokenizer)
        unknown = any(index >= size for index in kept)
        kept = [index for index in kept if index < size]
        text: str = self.tokenizer.decode(kept, clean_up_tokenization_spaces=False)
        if "\ufffd" not in text:
            return text, unknown
        raw = self._bytes_of(kept)
        try:
            return raw.decode("utf-8"), unknown
        except UnicodeDecodeError:
            return raw.decode("utf-8", errors="backslashreplace"), True

    def _encode(self, text: str, *, specials: bool) -> list[int]:
        # The ids of tokenizer(text), without its wrapper: encoding is on the path of every prompt.
        backend = self.tokenizer.backend_tokenizer
        backend.encode_special_tokens = not specials
        backend.no_truncation()  # both may be set by the tokenizer's file or its last call
        backend.no_padding()
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    def _plain_frame(self) -> tuple[list[int], list[int]]:
        """Return the ids around a message where there is no template: start token, separator."""
        first: list[int] = self.tokenizer("")["input_ids"][:1]
        starts = first if first == [self.tokenizer.bos_token_id] else []
        separator = self.tokenizer.sep_token_id
        return starts, [] if separator is None else [int(separator)]

    def _bytes_of(self, ids: Sequence[int]) -> bytes:
        """Return the bytes behind ids: byte-level tokens by their alphabet, byte-fallback ones by code."""
        level = _byte_level_table()
        parts: list[bytes] = []
        for token in self.tokenizer.convert_ids_to_tokens(list(ids)):
            if "ByteLevel" in self._decoder and token not in self._added and all(c in level for c in token):
                parts.append(bytes(level[character] for character in token))
            elif "ByteFallback" in self._decoder and len(token) == 6 and token.startswith("<0x"):
                parts.append(bytes([int(token[3:5], 16)]))
            else:
                parts.append(token.replace("\u2581", " ").encode())
        return b"".join(parts)


def fingerprint_of(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the SHA-256 of a tokenizer's content, special tokens and chat template."""
    content = _content_of(tokenizer)
    # Left by the last call, not part of the tokenizer.
    content.pop("padding", None)
    content.pop("truncation", None)
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = json.dumps([content, specials, tokenizer.chat_template], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _content_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return content


def _well_formed(text: str) -> str:
    """Return text that UTF-8 can hold."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Return the byte of each letter of the byte-level alphabet (GPT-2's: printable bytes are themselves)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + offset): byte for offset, byte in enumerate(others)
    }
