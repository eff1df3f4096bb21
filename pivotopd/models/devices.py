"""Where models compute: the GPU that DeepSpeed trains on, else the CPU.

Sampling, scoring and training must share one kind of device, or the first PPO ratio would not be 1.
"""

from __future__ import annotations

import os

import torch


def compute_device() -> torch.device:
    """Return the device of this process; ``DS_ACCELERATOR=cpu`` keeps all on the CPU, as in DeepSpeed."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
