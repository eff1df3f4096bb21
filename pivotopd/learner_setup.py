"""From the update's configuration to DeepSpeed's."""

from __future__ import annotations

from typing import Any

from pivotopd.config import UpdateSection

_BUCKET_NUMBERS = 500_000_000


def deepspeed_settings(config: UpdateSection, weights: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    The batch sizes are nominal: the learner sets each accumulation boundary itself. Gradients accumulate in
    the weights' type: ``grad_accum_dtype: fp32`` with ZeRO 1 and bfloat16 makes the gradients of DeepSpeed
    0.19.8 several times too large as soon as a step has more than one micro-batch.

    Args:
        config: The update's section.
        weights: Number of trained weights.
    """
    bucket = min(weights, _BUCKET_NUMBERS)  # the default would reserve gigabytes for a tiny model
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.gradient_clip,
        "steps_per_print": 1_000_000_000,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "zero_optimization": {
            "stage": config.zero_stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "overlap_comm": False,
        },
    }
