"""The optimizer's state as one file: every weight in float32, its two moments, and the step count.

It is written by name, whole, whatever the ZeRO stage and the number of ranks; so any learner of the same
model takes it up, bit by bit, with another stage or another number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pivotopd.errors import ArtifactError, StorageError, first_line

STATE_FILE = "optimizer.safetensors"
"""Beside the weights of a checkpoint."""
MASTER, MOMENTS = "weight", ("exp_avg", "exp_avg_sq")
"""Parts of a weight's state: itself in float32, and AdamW's two moments."""
_STEPS = "steps"


@contextmanager
def whole_weights(engine: Any) -> Iterator[None]:
    """Have every weight whole on every rank inside; with ZeRO 3 they are gathered. All ranks take part."""
    if engine.zero_optimization_stage() < 3:
        yield
        return
    import deepspeed  # noqa: PLC0415 - heavy

    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        yield


def save_state(engine: Any, path: Path, *, writes: bool) -> None:
    """Gather the state weight by weight, in main memory, and write it.

    Args:
        engine: DeepSpeed's engine.
        path: The file.
        writes: Whether this rank writes; all ranks take part.

    Raises:
        StorageError: The file cannot be written.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 - only here
    from safetensors.torch import save_file  # noqa: PLC0415 - only here

    steps, found = _steps(engine), {}
    parts = (MASTER, *MOMENTS) if steps else (MASTER,)
    for name, weight in _trained(engine):
        for part in parts:
            whole = _read(engine, weight, part)
            if writes:
                found[f"{name}/{part}"] = whole.detach().reshape(weight_shape(weight)).to("cpu", copy=True)
    if not writes:
        return
    try:
        save_file(found, path, metadata={_STEPS: str(steps)})
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot save the optimizer's state: {error}", where=str(path), mend="check free space"
        ) from error


def load_state(engine: Any, path: Path) -> None:
    """Take weights, moments and step count from a file.

    Raises:
        ArtifactError: There is no such file, it is damaged, or it belongs to another model.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only here

    if not path.is_file():
        raise ArtifactError(
            "the checkpoint has no optimizer state",
            where=str(path),
            mend="start from its weights only, or take a checkpoint that an update wrote",
        )
    try:
        with safe_open(path, framework="pt") as tensors:
            steps = int((tensors.metadata() or {})[_STEPS])
            parts = (MASTER, *MOMENTS) if steps else (MASTER,)
            wanted = {
                f"{name}/{part}": weight_shape(weight) for name, weight in _trained(engine) for part in parts
            }
            _check_same(wanted, _shapes(tensors))
            if steps:
                _begin_moments(engine, steps)
            for name, weight in _trained(engine):
                for part in parts:
                    _write(engine, weight, part, tensors.get_tensor(f"{name}/{part}"))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ArtifactError(
            f"the optimizer state does not fit this learner: {first_line(error)}",
            where=str(path),
            mend="load it with the model it was saved with",
        ) from error


def _shapes(tensors: Any) -> dict[str, tuple[int, ...]]:
    names = tensors.keys()
    return {name: tuple(tensors.get_slice(name).get_shape()) for name in names}


def _check_same(wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(f"{name} has the shape {found.get(name)} there, {wanted.get(name)} here")


def weight_shape(weight: Tensor) -> tuple[int, ...]:
    """Return a weight's own shape, also where ZeRO 3 holds it in parts."""
    return tuple(getattr(weight, "ds_shape", weight.shape))


def _trained(engine: Any) -> Iterator[tuple[str, Tensor]]:
    for name, weight in engine.module.named_parameters():
        if weight.requires_grad:
            yield name, weight


def _adam(engine: Any) -> torch.optim.Optimizer:
    """The AdamW below DeepSpeed's own optimizers."""
    outer = engine.optimizer
    found: torch.optim.Optimizer = outer if isinstance(outer, torch.optim.Optimizer) else outer.optimizer
    return found


def _steps(engine: Any) -> int:
    """Steps taken so far; one count holds for all weights, as none is ever left out."""
    states = [state for state in _adam(engine).state.values() if "step" in state]
    return int(states[0]["step"]) if states else 0


def _begin_moments(engine: Any, steps: int) -> None:
    """Make the moments, which AdamW does at its first step."""
    adam = _adam(engine)
    flat = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)  # ZeRO 3
    for weight in flat or [one for group in adam.param_groups for one in group["params"]]:
        adam.state[weight] = {
            "step": torch.tensor(float(steps)),
            **{name: torch.zeros_like(weight, memory_format=torch.preserve_format) for name in MOMENTS},
        }
    relink = getattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
    if relink is not None:  # ZeRO 1 and 2 keep views into the moments
        engine.optimizer._hp_optimizer_states_linked = False
        relink()


def _place(engine: Any, weight: Tensor, part: str) -> Tensor:
    """Stage 0: the tensor itself."""
    master = weight
    if hasattr(engine.optimizer, "fp32_groups"):  # bfloat16
        pairs = zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups, strict=True)
        master = next(
            full for low, high in pairs for one, full in zip(low, high, strict=True) if one is weight
        )
    found: Tensor = master if part == MASTER else _adam(engine).state[master][part]
    return found


def _read(engine: Any, weight: Tensor, part: str) -> Tensor:
    """Return a whole part; with ZeRO all ranks take part."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: PLC0415

    if engine.zero_optimization_stage() == 0:
        return _place(engine, weight, part)
    found: Tensor = (
        safe_get_full_fp32_param(weight) if part == MASTER else safe_get_full_optimizer_state(weight, part)
    )
    return found


def _write(engine: Any, weight: Any, part: str, value: Tensor) -> None:
    """Set this rank's share of a part; with the weight in float32, the weight itself too."""
    from deepspeed.utils import (  # noqa: PLC0415 - heavy
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

    stage = engine.zero_optimization_stage()
    value = value.to(engine.device)
    if stage == 0:
        _place(engine, weight, part).data.copy_(value)
    elif stage < 3 and part == MASTER:
        safe_set_full_fp32_param(weight, value)
    elif stage < 3:
        safe_set_full_optimizer_state(weight, value, part)
    else:
        # DeepSpeed's own way to set a whole tensor fails where the ranks do not divide it
        share = weight.ds_tensor.ds_numel
        padded = torch.nn.functional.pad(value.flatten(), (0, share * engine.world_size - value.numel()))
        mine = padded[share * engine.global_rank : share * (engine.global_rank + 1)]
        if part == MASTER:
            safe_set_local_fp32_param(weight, mine)
        else:
            safe_set_local_optimizer_state(weight, mine, part)
    if part == MASTER and stage == 3:
        weight.ds_tensor.data.copy_(mine)
        if weight.numel() == weight.ds_numel:  # small weights stay whole
            weight.data.copy_(value.reshape(weight.shape))
    elif part == MASTER:
        weight.data.copy_(value)
