"""LoRA: small trained matrices beside frozen ones, and the weights that they make together.

W' = W + (alpha / rank) * B A, with A (rank, in) drawn and B (out, rank) zero at the start, so that the first
step begins at the very policy. Source: LoRA (arXiv 2106.09685); the layers are those of the library peft.

No dropout: the first PPO ratio must be 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pivotopd.config import LoraSection
from pivotopd.errors import ConfigError, first_line
from pivotopd.seeds import seed_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BASE = ".base_layer."
_ADAPTER = "default"


def add_adapters(model: PreTrainedModel, section: LoraSection) -> None:
    """Put adapters into a model, in place, and freeze all else.

    Raises:
        ConfigError: peft is not installed, or the model has no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            "LoRA needs the library peft", where="update.lora", mend="pip install 'pivotopd[lora]'"
        ) from error
    settings = LoraConfig(
        r=section.rank, lora_alpha=section.alpha, lora_dropout=0.0, target_modules=list(section.targets)
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("adapters") % 2**63)
            inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise ConfigError(
            f"the model takes no such adapters: {first_line(error)}",
            where="update.lora.targets",
            mend="name linear layers of the model, such as q_proj and v_proj",
        ) from error


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of the same model without adapters, by their names.

    The model itself stays as it is, bit by bit.
    """
    from peft.tuners.lora import LoraLayer  # noqa: PLC0415 - optional

    adapted = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        layer, _, kind = name.rpartition(_BASE)
        if layer in adapted and kind == "weight":
            delta = adapted[layer].get_delta_weight(_ADAPTER)
            found[f"{layer}.weight"] = (tensor.float() + delta.float()).to(tensor.dtype)
        elif layer in adapted:
            found[f"{layer}.{kind}"] = tensor
        elif ".lora_" not in name:
            found[name] = tensor
    return found
