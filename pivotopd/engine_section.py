"""The section ``engine`` of a configuration: what generates, and how it is sized."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from pivotopd.section import Count, Positive, Section

CUTTING: Final = frozenset(
    {
        "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    }
)  # fmt: skip
"""Ways to sample that cut or bend the distribution: log-probabilities would not be those of the draws."""


def _is_address(url: str) -> bool:
    """Tell whether a text is the address of a server; whoever reaches one may ask, so none has a password."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0  # a port beyond 65535 raises
    except ValueError:
        return False
    plain = url.isprintable() and " " not in url and "@" not in parts.netloc
    return parts.scheme in {"http", "https"} and named and plain and not (parts.query or parts.fragment)


def server_urls(urls: list[str]) -> list[str]:
    """Refuse what cannot be the addresses of different servers."""
    for url in urls:
        if not _is_address(url):  # it may hold a password, so it is not repeated
            raise ValueError(
                "addresses of servers are wanted here, such as http://HOST:8801, without user or password"
            )
    if len({url.rstrip("/") for url in urls}) != len(urls):
        raise ValueError("an address stands there twice")
    return urls


class EngineSection(Section):
    """What generates in rollouts, recoveries and evaluations; the learner's own model scores."""

    RUNNING: ClassVar[frozenset[str]] = frozenset(
        {
            "gpu_memory_share", "tensor_parallel", "data_parallel", "concurrency", "parity_rows",
            "parity_bound_nats", "urls",
        }
    )  # fmt: skip
    """Keys that say how the engine is sized and checked, not what it draws: no digest covers them."""

    kind: Literal["transformers", "vllm"] = "transformers"
    """`vllm` is the extra `pivotopd[vllm]`. The two draw different responses."""
    fallback: Literal["none", "transformers"] = "none"
    """What runs a model that vLLM does not know: `none` refuses it."""
    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of a GPU's memory that vLLM reserves, beside the learner."""
    tensor_parallel: Count = 1
    """GPUs that each matrix of the model is spread over."""
    data_parallel: Count = 1
    """Copies of the model: one; for more, start several policy servers."""
    concurrency: Count = 256
    """Most responses that vLLM or a server writes at once; a result depends on it by rounding alone."""
    parity_rows: Count = 8
    """Sequences of the parity probe after each load: engine and learner give their log-probabilities."""
    parity_bound_nats: Positive | None = None
    """Largest difference of a token's; null is 0.01 (float32) or 0.5 (bfloat16); beyond it the run stops."""

    urls: Annotated[list[str], AfterValidator(server_urls)] = Field(default_factory=list)
    """Addresses of policy servers (`pivotopd serve policy`) that generate; none: an engine of the run."""

    @property
    def reads(self) -> dict[str, Any]:
        """What decides an engine's draws; sizes and memory do not."""
        return self.model_dump(mode="json", exclude={*self.RUNNING})
