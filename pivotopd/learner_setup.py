"""From the update's configuration to DeepSpeed's, and what a model needs under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pivotopd.config import UpdateSection

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


def scored_by(deepspeed: Any, shell: torch.nn.Module, model: PreTrainedModel) -> None:
    """Tell ZeRO 3 that a module uses the model's head, which it never calls, in both of its passes."""
    head = model.get_output_embeddings()
    for weight in (head.weight, head.bias):
        if weight is not None:
            deepspeed.zero.register_external_parameter(shell, weight)


def recompute_layers(model: PreTrainedModel) -> None:
    """Keep only the layers' inputs for the backward pass, which computes each layer a second time.

    transformers does so in training mode alone. So the layers themselves are put into it, but nothing in
    them: a dropout stays off.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer  # noqa: PLC0415 - heavy

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
