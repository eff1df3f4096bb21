"""The section ``engine`` of a configuration: what generates, and how it is sized."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from pivotopd.section import Count, Positive, Section

CUTTING: Final = frozenset(
    {
        "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    }
)  # fmt: skip
"""Ways to sample that cut or bend the distribution: log-probabilities would not be those of the draws."""


def server_urls(urls: list[str]) -> list[str]:
    """Refuse what cannot be the addresses of different servers."""
    for url in urls:
        if not url.startswith(("http://", "https://")) or not url.isprintable() or " " in url:
            raise ValueError(f"{url!r} is no address of a server, such as http://HOST:8801")
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
