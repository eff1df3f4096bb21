"""The teacher's settings: who labels episodes, and which larger model scores tokens.

A run has one kind of teacher; :data:`TeacherSection` is told apart by its key ``kind``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator

from pivotopd.engine_section import server_urls
from pivotopd.section import Count, NonNegative, Positive, Section


class OracleSection(Section):
    """The exact shortest-path oracle labels episodes and names recovery actions."""

    kind: Literal["oracle"] = "oracle"
    """Marks this kind of teacher."""
    informed: bool = True
    """Restrict the oracle to what the student has seen; false lets it use hidden objects."""
    max_candidates: Count = 5
    """Most candidate turns an episode (m)."""


class EndpointSection(Section):
    """A language model behind an OpenAI-compatible chat endpoint, such as a vLLM server."""

    RUNNING: ClassVar[frozenset[str]] = frozenset(
        {
            "base_url", "api_key_variable", "concurrency", "timeout_s", "retries", "price_input",
            "price_output", "cache",
        }
    )  # fmt: skip
    """Keys that say where and how the model is reached, not what it answers: no digest covers them."""

    kind: Literal["endpoint"] = "endpoint"
    """Marks this kind of teacher."""
    base_url: str
    """Address up to and without `/chat/completions`, such as `http://localhost:8000/v1`."""
    model: str
    """Name that the server gives the model; other weights need another name."""
    api_key_variable: str | None = None
    """Name of the environment variable that holds the key; null sends none. The key is kept nowhere."""
    temperature: NonNegative | None = None
    """Sampling temperature; null takes the served default."""
    reply_tokens: Count = 4096
    """Longest reply."""
    max_candidates: Count = 5
    """Most candidate turns an episode (m)."""
    structured: Literal["off", "auto"] = "off"
    """`auto` asks the server to enforce JSON, and falls back where it cannot; `off` is the paper's form."""
    concurrency: Count = 16
    """Requests in flight at once."""
    timeout_s: Positive = 300.0
    """Longest wait for one reply; no try begins after this times (retries + 1)."""
    retries: Annotated[int, Field(ge=0)] = 4
    """Further tries after 429, 5xx, a timeout or a broken connection."""
    price_input: NonNegative | None = None
    """Price of a million prompt tokens; null counts no cost."""
    price_output: NonNegative | None = None
    """Price of a million reply tokens."""
    cache: str | None = None
    """Folder or fsspec URI of answered requests; null takes ROOT/shared/teacher_cache."""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write an address such as http://localhost:8000/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("no user, password or query in the address: use api_key_variable")
        return value.rstrip("/")

    @field_validator("api_key_variable")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", value):
            raise ValueError("give the name of an environment variable in capitals, never the key itself")
        return value


class SelfSection(Section):
    """The student, as it is at the start of the iteration, labels its own episodes."""

    kind: Literal["self"] = "self"
    """Marks this kind of teacher."""
    temperature: NonNegative = 1.0
    """Sampling temperature."""
    prompt_tokens: Count = 16_384
    """Longest prompt; a longer episode is not read."""
    reply_tokens: Count = 2048
    """Longest reply."""
    max_candidates: Count = 5
    """Most candidate turns an episode (m)."""


class LocalSection(Section):
    """A language model in a local folder, loaded in this process or served, labels episodes."""

    RUNNING: ClassVar[frozenset[str]] = frozenset({"path", "concurrency", "gpu_memory_share", "urls"})
    """Keys that say where the model lies and how it is run; its content is an input of what it answers."""

    kind: Literal["local"] = "local"
    """Marks this kind of teacher."""
    path: str
    """Folder with config, safetensors weights and tokenizer."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What runs it; `vllm` is the extra `pivotopd[vllm]`. The two draw different replies."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Weights and computation."""
    temperature: NonNegative = 1.0
    """Sampling temperature."""
    prompt_tokens: Count = 16_384
    """Longest prompt; a longer episode is not read."""
    reply_tokens: Count = 4096
    """Longest reply."""
    max_candidates: Count = 5
    """Most candidate turns an episode (m)."""
    concurrency: Count = 16
    """Replies written at once; memory grows with it."""
    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the GPU's memory that vLLM reserves, beside the student."""
    urls: Annotated[list[str], AfterValidator(server_urls)] = Field(default_factory=list)
    """Addresses of servers (`pivotopd serve teacher`) that hold it; none: it is loaded in this process."""


def _teacher_tag(value: Any) -> str | None:
    return value.get("kind", "oracle") if isinstance(value, dict) else getattr(value, "kind", None)


TeacherSection = Annotated[
    Annotated[OracleSection, Tag("oracle")]
    | Annotated[EndpointSection, Tag("endpoint")]
    | Annotated[SelfSection, Tag("self")]
    | Annotated[LocalSection, Tag("local")],
    Discriminator(_teacher_tag),
]


class LargerTeacherSection(Section):
    """A larger model that scores the student's own tokens; for the methods that need one."""

    path: str | None = None
    """Folder of a local causal language model with the student's tokenizer; null for none."""
