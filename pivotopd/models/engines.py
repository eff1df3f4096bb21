"""Whether vLLM generates with a policy, and how it is started: the section ``engine`` of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pivotopd.engine_section import EngineSection
from pivotopd.errors import ConfigError

if TYPE_CHECKING:
    from pivotopd.models.vllm_engine import VllmEngine


def check_engine_section(section: EngineSection) -> None:
    """Refuse an engine that cannot run here, whatever the model; quick.

    Raises:
        ConfigError: vLLM is wanted and not installed, or several copies of the model are asked for.
    """
    if section.kind == "vllm":
        from pivotopd.models.vllm_engine import check_vllm  # noqa: PLC0415 - optional

        check_vllm(where="engine.kind")
    if section.data_parallel > 1:
        raise ConfigError(
            f"an engine inside a run is one copy of the model, not {section.data_parallel}",
            where="engine.data_parallel",
            mend="leave it at 1; tensor_parallel spreads one copy over several GPUs, and several "
            "policy servers (engine.urls) are several copies",
        )


def vllm_runs(section: EngineSection, folder: Path) -> bool:
    """Tell whether vLLM is to generate; false where the default engine is asked for or stands in.

    Args:
        section: Section ``engine``.
        folder: Model folder of the policy.

    Raises:
        ConfigError: As :func:`check_engine_section`; or vLLM does not know the model and nothing stands in.
        ArtifactError: The folder is damaged.
    """
    check_engine_section(section)
    if section.kind != "vllm":
        return False
    from pivotopd.models.vllm_engine import check_model  # noqa: PLC0415 - optional

    return check_model(folder, may_fall_back=section.fallback == "transformers")


def start_vllm(
    section: EngineSection, folder: Path, policy: str, *, dtype: str, max_tokens: int
) -> VllmEngine:
    """Start vLLM as a section asks for it.

    Args:
        section: Section ``engine``.
        folder: Model folder of the policy.
        policy: Digest of the work that made it.
        dtype: ``float32`` or ``bfloat16``.
        max_tokens: Most tokens of a prompt with its response.

    Raises:
        ConfigError: vLLM cannot run the model with these settings.
        ArtifactError: The folder or a part of it is missing or damaged.
    """
    from pivotopd.models.checkpoint import model_facts, read_text_side  # noqa: PLC0415 - heavy
    from pivotopd.models.vllm_engine import VllmEngine  # noqa: PLC0415 - optional

    positions = model_facts(folder).positions
    longest = max_tokens + 1  # vLLM gives a prompt's log-probabilities only with a token to follow
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
