"""Requests in flight in vLLM: its own loop takes new prompts at any step and gives up what ends.

That loop runs in vLLM's process, so responses grow also while nobody waits for one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pivotopd.errors import EngineFault, NumericsError
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, FinishReason, Request, Sampling, generation_counts

_NUMBERS: Final[Iterator[int]] = itertools.count()
"""Tells flights apart, so that what vLLM still says of an earlier one is known as that."""


@dataclass
class VllmFlight:
    """What one caller has in flight in one vLLM engine.

    Args:
        llm: vLLM's ``LLMEngine``.
        stop_ids: Ids that end a response.
        sampling: How tokens are drawn.
        check: Refuses requests that do not fit the model.
        alive: Turns the end of vLLM's process into one error.
        count: Takes what was computed.
        ended: Set once the engine has been closed.
        outputs: What has ended and was not yet handed over, by name, of all flights of the engine.
    """

    llm: Any
    stop_ids: Sequence[int]
    sampling: Sampling
    check: Callable[[Sequence[Request], Sampling], None]
    alive: Callable[[], AbstractContextManager[None]]
    count: Callable[[Counts], None]
    ended: threading.Event
    outputs: dict[str, Any]
    _flying: dict[str, tuple[int, Request]] = field(default_factory=dict)
    _number: int = field(default_factory=lambda: next(_NUMBERS))

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add requests to what vLLM writes.

        Raises:
            ConfigError: The sampling settings, a prompt's length or its ids do not fit the model.
            EngineFault: The engine has ended.
        """
        self.check(list(requests.values()), self.sampling)
        if not requests:
            return
        with self.alive():
            for key, request in requests.items():
                prompt = {"type": "token", "prompt_token_ids": [int(one) for one in request.prompt_ids]}
                name = f"flight {self._number} {key}"
                self._flying[name] = (key, request)
                self.llm.add_request(name, prompt, self._settings(request))
        self.count(Counts(rounds=1))

    def land(self) -> dict[int, Completion]:
        """Wait until some responses are complete; return all that are.

        Raises:
            NumericsError: A log-probability is not finite; names the request's key.
            EngineFault: The engine has ended.
        """
        if not self._flying:
            return {}
        with self.alive():
            while not self.outputs.keys() & self._flying.keys():
                self._step()
            for _ in range(self.llm.engine_core.outputs_queue.qsize()):  # said in the meantime
                self._step()
        landed: dict[int, Completion] = {}
        asked: list[Request] = []
        ended = self.outputs.keys() & self._flying.keys()
        for name in sorted(ended, key=lambda name: self._flying[name][0]):
            key, request = self._flying.pop(name)
            output = self.outputs.pop(name)
            landed[key] = _completion(key, output.outputs[0], output.num_cached_tokens or 0)
            asked.append(request)
        counts = generation_counts(asked, list(landed.values()))
        self.count(counts - Counts(rounds=counts.rounds))  # those were counted as they were sent
        return landed

    def close(self) -> None:
        """Let vLLM drop what is still in flight."""
        left, self._flying = [name for name in self._flying if self.outputs.pop(name, None) is None], {}
        if left and not self.ended.is_set():
            with suppress(EngineFault), self.alive():
                self.llm.abort_request(left)

    def _step(self) -> None:
        """Wait for vLLM's next word, and keep what has ended for whoever sent it."""
        self.outputs.update((one.request_id, one) for one in self.llm.step() if one.finished)

    def _settings(self, request: Request) -> Any:
        """Return vLLM's sampling settings, with all of the support: its or the folder's defaults cut it."""
        from vllm import SamplingParams  # noqa: PLC0415 - optional and heavy
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - optional and heavy

        return SamplingParams(
            seed=request.seed,
            temperature=self.sampling.temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            max_tokens=self.sampling.max_tokens,
            stop_token_ids=list(self.stop_ids),
            ignore_eos=True,  # the ids above hold it
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _completion(key: int, output: Any, cached_tokens: int) -> Completion:
    ids = np.array(output.token_ids, dtype=np.int32)
    nats = np.array(
        [place[int(token)].logprob for place, token in zip(output.logprobs, ids, strict=True)], np.float32
    )
    if not np.isfinite(nats).all():
        raise NumericsError(
            f"the model's log-probabilities are not finite for request {key}",
            mend="the weights have diverged: go back to an earlier checkpoint, lower the learning rate",
        )
    reason: FinishReason = "length" if output.finish_reason == "length" else "stop"
    return Completion(ids, nats, reason, cached_tokens)
