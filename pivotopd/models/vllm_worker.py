"""What vLLM's worker processes do for a run: take new weights, end with the run's process.

vLLM imports this module in each worker, early in its start, and adds the class's methods to the worker's own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

WORKER_CLASS: Final = "pivotopd.models.vllm_worker.PolicyWorker"
OWNER: Final = "PIVOTOPD_ENGINE_OWNER"
"""Variable that names the run's process to the workers: its id, and when it started."""
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


@contextmanager
def owned() -> Iterator[None]:
    """Make the processes that are started inside end with this one, however it goes."""
    me = os.getpid()
    os.environ[OWNER] = f"{me} {_started(me)}"
    try:
        yield
    finally:
        del os.environ[OWNER]


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


def _end_with_owner() -> None:
    """Kill this process when the one that owns it is gone; nothing where it has no owner."""
    process, _, started = os.environ.get(OWNER, "").partition(" ")
    if process and int(process) != os.getpid():
        threading.Thread(target=_watch, args=(int(process), started), daemon=True).start()


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


_end_with_owner()  # as a worker starts: its run may be gone before it can be asked for anything
