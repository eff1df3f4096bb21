"""What vLLM's worker processes do for a run: take new weights, end with the run's process.

vLLM imports :class:`PolicyWorker` by name in each worker and adds its methods to the worker's own. Its own
configuration carries :class:`Owner` into every process that it starts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

WORKER_CLASS: Final = "pivotopd.models.vllm_worker.PolicyWorker"
_LOOK_S: Final = 1.0


class PolicyWorker:
    """Methods of a worker; the attributes are those of vLLM's class."""

    model_runner: Any
    vllm_config: Any

    def reload_policy(self, folder: str, mend_head: bool) -> None:
        """Replace the weights by those of a folder.

        On a CPU a tied output head is a packed copy of the embedding, which vLLM's own reload leaves as it
        was, without a word.

        Args:
            folder: Model folder.
            mend_head: Pack the head anew; false leaves vLLM's own result, for tests.
        """
        from vllm.config import set_current_vllm_config  # noqa: PLC0415 - in workers only

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(weights_path=folder)
            if mend_head:
                _tie_again(self.model_runner.get_model())


class Owner(str):
    """The id of the run's process and when it started; who unpickles it elsewhere ends with that process.

    Every process of vLLM unpickles its configuration as it begins, long before it can be asked for anything:
    a run that is killed while its engine starts leaves none behind. It is a text, which vLLM can hash.
    """

    __slots__ = ()

    @classmethod
    def this_process(cls) -> Owner:
        """Name the process that calls."""
        return cls(f"{os.getpid()} {_started(os.getpid())}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_owned_by, (str(self),))


def _owned_by(owner: str) -> Owner:
    _end_with(owner)
    return Owner(owner)


@cache
def _end_with(owner: str) -> None:
    """Kill this process when another one is gone, however that went."""
    process, _, started = owner.partition(" ")
    if int(process) != os.getpid():
        threading.Thread(target=_watch, args=(int(process), started), daemon=True).start()


def _tie_again(model: Any) -> None:
    from vllm.platforms import current_platform  # noqa: PLC0415 - in workers only

    head, body = getattr(model, "lm_head", None), getattr(model, "model", None)
    embedding = getattr(body, "embed_tokens", None)
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    if not tied or head is None or embedding is None or head is embedding:
        return
    head.weight = embedding.weight
    if current_platform.is_cpu():
        from vllm.model_executor.layers.utils import (  # noqa: PLC0415 - in workers only
            dispatch_cpu_unquantized_gemm,
        )

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def _watch(process: int, started: str) -> None:
    while _started(process) == started:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _started(process: int) -> str:
    """Return when a process started, in the kernel's ticks; empty where it is gone (proc(5))."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
