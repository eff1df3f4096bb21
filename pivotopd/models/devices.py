"""Where models compute: the GPU that DeepSpeed trains on, else the CPU; and what is said where it is full.

Sampling, scoring and training must share one kind of device, or the first PPO ratio would not be 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from pivotopd.errors import ConfigError, first_line

GENERATION_NEEDS: Final = (
    "lower rollout.batch_episodes (a local teacher's: teacher.concurrency) or update.micro_batch_tokens; "
    "seeds belong to requests, so the draws stay"
)
SCORING_NEEDS: Final = "lower update.micro_batch_tokens; the result does not depend on it"
MODEL_NEEDS: Final = (
    "end what else uses the GPU, set update.dtype=bfloat16, lower engine.gpu_memory_share where vLLM "
    "generates, or take a smaller model"
)


def compute_device() -> torch.device:
    """Return the device of this process; ``DS_ACCELERATOR=cpu`` keeps all on the CPU, as in DeepSpeed."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def memory_for(what: str, mend: str, where: str | None = None) -> Iterator[None]:
    """Say what did not fit the accelerator's memory, and which setting makes it smaller.

    Args:
        what: What is done inside.
        mend: What needs less.
        where: The setting that decides the size, with its value.

    Raises:
        ConfigError: The memory is too small.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the accelerator's memory is too small for {what}: {first_line(error)}", where=where, mend=mend
        ) from error


def put_on_device(model: Any) -> None:
    """Move a model to the device of this process, in place.

    Raises:
        ConfigError: Its memory is too small.
    """
    with memory_for("the model's weights", MODEL_NEEDS):
        model.to(compute_device())
