"""CPU threads of the model engines. More threads than free cores slow everything down."""

from __future__ import annotations


def set_threads(count: int) -> None:
    """Let torch use ``count`` threads in this process."""
    import torch  # noqa: PLC0415 - only a process that runs a model pays for the import

    torch.set_num_threads(count)
