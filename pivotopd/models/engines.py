"""Which engine generates with a policy: the section ``engine`` of a configuration decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pivotopd.engine_section import EngineSection
from pivotopd.errors import ConfigError
from pivotopd.models.base import PolicyEngine
from pivotopd.models.checkpoint import load_policy, model_facts, read_text_side
from pivotopd.models.devices import compute_device
from pivotopd.models.transformers_engine import TransformersEngine


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of an engine; no result depends on them.

    Attributes:
        max_tokens: Most tokens of a prompt with its response.
        token_budget: Most positions of a forward pass of the engine ``transformers``.
        max_batch: Most rows that decode together there.
    """

    max_tokens: int
    token_budget: int = 16_384
    max_batch: int = 256


def start_engine(
    section: EngineSection, folder: Path, policy: str, *, dtype: str, limits: Limits
) -> PolicyEngine:
    """Start the engine that a section asks for.

    Args:
        section: Section ``engine``.
        folder: Model folder of the policy.
        policy: Digest of the work that made it.
        dtype: ``float32`` or ``bfloat16``.
        limits: Sizes.

    Raises:
        ConfigError: vLLM is not installed, does not know the model and no fallback is set, or cannot run it
            with these settings.
        ArtifactError: The folder or a part of it is missing or damaged.
    """
    if section.kind == "vllm" and _vllm_runs(section, folder):
        from pivotopd.models.vllm_engine import VllmEngine  # noqa: PLC0415 - optional

        positions = model_facts(folder).positions
        # One more than asked: vLLM gives a prompt's log-probabilities only with a token to follow.
        longest = limits.max_tokens + 1
        return VllmEngine(
            folder,
            read_text_side(folder).stop_ids,
            dtype=dtype,
            max_tokens=longest if positions is None else min(longest, positions),
            concurrency=section.concurrency,
            gpu_memory_share=section.gpu_memory_share,
            tensor_parallel=section.tensor_parallel,
            policy=policy,
        )
    loaded = load_policy(folder, dtype)
    loaded.model.to(compute_device())
    return TransformersEngine(loaded, limits.token_budget, limits.max_batch, policy)


def _vllm_runs(section: EngineSection, folder: Path) -> bool:
    """Tell whether vLLM knows the model; ConfigError where it does not and nothing may stand in."""
    from pivotopd.models.vllm_engine import check_model, check_vllm  # noqa: PLC0415 - optional

    check_vllm(where="engine.kind")
    if section.data_parallel > 1:
        raise ConfigError(
            f"an engine inside a run is one copy of the model, not {section.data_parallel}",
            where="engine.data_parallel",
            mend="leave it at 1; tensor_parallel spreads one copy over several GPUs",
        )
    return check_model(folder, may_fall_back=section.fallback == "transformers")
