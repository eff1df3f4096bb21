"""Ranks of one training process group: joined once a process, reused by every learner, left at exit.

Under torchrun its environment decides. Alone, the group of one lives in this process: no port is opened.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pivotopd.compiled_operators import extensions_folder, one_at_a_time
from pivotopd.errors import ConfigError, first_line
from pivotopd.models.devices import compute_device
from pivotopd.services.background import Background

_LOG = logging.getLogger(__name__)
_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join() -> Any:
    """Join the process group, start DeepSpeed's communication, and return the ``deepspeed`` module.

    The first call on a machine compiles DeepSpeed's shared-memory operator (about a minute; needs a C++
    compiler; kept under ``TORCH_EXTENSIONS_DIR``, by default in the user's cache). DeepSpeed has no switch
    against it. Later calls cost nothing.

    Raises:
        ConfigError: A launcher's environment is incomplete, or the operator does not compile.
    """
    on_gpu = compute_device().type == "cuda"
    if not on_gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    ours = str(extensions_folder())
    folder = os.environ.setdefault("TORCH_EXTENSIONS_DIR", ours)  # a child process finds it set
    if not dist.is_initialized():
        _join_torch("nccl" if on_gpu else "gloo")
    # DeepSpeed calls torch by names that torch is about to drop
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    with quiet(), _own_programs_first():
        import deepspeed  # noqa: PLC0415 - heavy, and DS_ACCELERATOR must be set before

        try:
            # another folder is the user's: other programs may be compiling there
            with one_at_a_time(Path(ours)) if folder == ours else contextlib.nullcontext():
                _load_operator(deepspeed)
            deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", verbose=False)
        except (RuntimeError, OSError) as error:  # OSError: the folder of compiled operators
            raise ConfigError(
                f"DeepSpeed's communication does not start: {first_line(error)}",
                where=folder,
                mend="install a C++ compiler (g++) and ninja, and give TORCH_EXTENSIONS_DIR a folder that "
                "can be written: the first start compiles an operator there",
            ) from error
    return deepspeed


def meet(place: Path, rank: int, ranks: int) -> None:
    """Join a process group of this machine through a file: no port of ours is opened, none can be taken.

    Args:
        place: The file, the same and new for all; its folder exists.
        rank: This process's rank, which is also the number of its GPU.
        ranks: How many there are.
    """
    os.environ["LOCAL_RANK"] = str(rank)
    on_gpu = compute_device().type == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(place), ranks)  # type: ignore[attr-defined]  # as HashStore below
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=ranks)
    atexit.register(_leave)


def _load_operator(deepspeed: Any) -> None:
    """Load the operator of DeepSpeed's start, ahead of the part in which ranks wait for each other.

    DeepSpeed keeps what was loaded, so its start finds it and touches no file.
    """
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415 - after DS_ACCELERATOR is set

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
        builder.load()


def _join_torch(backend: str) -> None:
    missing = [name for name in _LAUNCHED if name not in os.environ]
    if "RANK" in os.environ and missing:
        raise ConfigError(
            f"RANK is set, but {', '.join(missing)} is not",
            where="environment variables",
            mend="start several ranks with torchrun, or unset RANK for one",
        )
    if "RANK" in os.environ:
        if backend == "nccl":
            torch.cuda.set_device(compute_device())
        store, rank, ranks = _found_others()
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    else:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not marked as exported
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    atexit.register(_leave)


def _found_others() -> tuple[Any, int, int]:
    """Wait for the other ranks, and for a request to stop, which torch's own wait would not let through."""
    meeting: Background[tuple[Any, int, int]] = Background()
    meeting.start("ranks", lambda: next(dist.rendezvous("env://")))  # type: ignore[attr-defined]
    [(_, found)] = meeting.ended()
    if isinstance(found, BaseException):
        raise found
    return found


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep DeepSpeed's chatter out of a command's output; what it prints goes to our debug log."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        yield
    if text := printed.getvalue().strip():
        _LOG.debug("DeepSpeed: %s", text)


@contextlib.contextmanager
def _own_programs_first() -> Iterator[None]:
    """Let the compile find the ninja that was installed beside this Python."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def total(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums of values over all ranks."""
    return _reduced(values, device, dist.ReduceOp.SUM)


def largest(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the maxima of values over all ranks."""
    return _reduced(values, device, dist.ReduceOp.MAX)


def _reduced(values: Sequence[float], device: torch.device, operation: Any) -> list[float]:
    buffer = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(buffer, op=operation)
    result: list[float] = buffer.tolist()
    return result
