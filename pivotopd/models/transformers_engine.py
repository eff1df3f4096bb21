"""The default engine: generation and scoring with a transformers model, on CPU or one GPU.

Legend: B rows of a batch, L tokens of a prompt, T longest response, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pivotopd.errors import ConfigError, NumericsError
from pivotopd.ledger import Counts
from pivotopd.models.attention import can_branch, use_grouped_steps
from pivotopd.models.base import (
    Completion,
    Nats,
    Request,
    Sampling,
    ScoreRequest,
    TokenDistributions,
)
from pivotopd.models.batching import TokenBatch, micro_batches
from pivotopd.models.checkpoint import DTYPES, Policy, load_policy
from pivotopd.models.decoding import Decoding
from pivotopd.models.devices import MODEL_NEEDS, SCORING_NEEDS, memory_for
from pivotopd.models.in_flight import InFlight
from pivotopd.models.logprobs import response_logprobs, response_values, sampled
from pivotopd.models.prefixes import branch_packs, branches_of
from pivotopd.models.repeats import repeats_of, tokens_of
from pivotopd.models.vocabulary import check_ids

CPU_PASS_TOKENS = 2048
"""A CPU is fastest when a pass's activations fit its cache: for a tiny model twice as fast as 16,384."""


class TransformersEngine:
    """Samples and scores with one policy; a request's result does not depend on its neighbours.

    That holds up to the last bits of the logits, which change with the shapes of the matrix products. A draw
    that falls within them of the border of two tokens may turn out differently (measured on random float32
    models with flat distributions: 2 of 60,000 draws).

    Args:
        policy: Model and tokenizer.
        token_budget: Most positions (padding included) of a prefill or scoring pass.
        max_batch: Most rows that decode together.
        digest: Digest of the work that made the policy.

    Attributes:
        policy: Digest of the loaded policy.
        loaded: Its model and tokenizer.
        counts: What was computed so far.

    Raises:
        ConfigError: A limit is below 1.
    """

    def __init__(
        self, policy: Policy, token_budget: int = 16_384, max_batch: int = 256, digest: str = ""
    ) -> None:
        if token_budget < 1 or max_batch < 1:
            raise ConfigError(f"token_budget {token_budget} and max_batch {max_batch} must be at least 1")
        self.token_budget, self.max_batch = token_budget, max_batch
        self.counts = Counts()
        self.serve(policy, digest)

    def serve(self, policy: Policy, digest: str) -> None:
        """Go on with a policy that is loaded already; nothing of an earlier one is kept.

        Args:
            policy: Model and tokenizer.
            digest: Digest of the work that made it.
        """
        use_grouped_steps(policy.model)
        self.loaded, self.policy = policy, digest

    def reload(self, folder: Path, policy: str) -> None:
        """Load a policy's folder in place of the present one, with its type and on its device.

        Args:
            folder: Model folder.
            policy: Digest of the work that made it.

        Raises:
            ArtifactError: The folder is damaged.
            NumericsError: A weight is not finite.
            ConfigError: The accelerator's memory is too small.
        """
        device, dtype = self._device, self.loaded.model.dtype
        loaded = load_policy(folder, next(name for name, one in DTYPES.items() if one == dtype))
        with memory_for("the model's weights", MODEL_NEEDS):
            loaded.model.to(device)
        self.serve(loaded, policy)

    def close(self) -> None:
        """Free nothing: the model belongs to who loaded it."""

    @property
    def _pass_tokens(self) -> int:
        return min(self.token_budget, CPU_PASS_TOKENS) if self._device.type == "cpu" else self.token_budget

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.loaded.model.get_input_embeddings().weight.device
        return device

    @property
    def _vocabulary(self) -> int:
        """Ids that the model has an embedding for."""
        return int(self.loaded.model.get_input_embeddings().weight.shape[0])

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return one completion a request, in order.

        Raises:
            ConfigError: The sampling settings, a prompt's length or its ids do not fit the model, or the
                batch the accelerator's memory.
            NumericsError: The model's logits are not finite; names the request.
        """
        flight = self._decoding(sampling, whole=True)
        flight.send(dict(enumerate(requests)))
        found: dict[int, Completion] = {}
        while landed := flight.land():
            found |= landed
        return [found[index] for index in range(len(requests))]

    def begin(self, sampling: Sampling) -> InFlight:
        """Return an empty flight: each response leaves the batch when it ends, and prompts take its place."""
        return self._decoding(sampling, whole=False)

    def _decoding(self, sampling: Sampling, *, whole: bool) -> Decoding:
        return Decoding(
            self.loaded, sampling, self.max_batch, self._pass_tokens, self._check, self._count, whole=whole
        )

    def _count(self, counts: Counts) -> None:
        self.counts += counts

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        """Return the (R,) log-probabilities at temperature 1 of each request's response tokens.

        Raises:
            ConfigError: A token id is not in the vocabulary, or the accelerator's memory is too small.
            NumericsError: A log-probability is not a number; names the request.
        """
        values = self._values(requests, lambda batch: (response_logprobs(self.loaded.model, batch),))
        return [nats.numpy() for (nats,) in values]

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        """Return what :meth:`score` does, and each token's likeliest ids, of the same pass.

        Args:
            requests: What to score.
            top_tokens: How many ids (K); None for the whole vocabulary.

        Raises:
            ConfigError: The vocabulary has fewer ids, or lacks one of a request; or the accelerator's memory
                is too small.
            NumericsError: A log-probability is not a number; names the request.
        """
        vocabulary = self.loaded.model.get_output_embeddings().weight.shape[0]
        width = vocabulary if top_tokens is None else top_tokens
        if not 1 <= width <= vocabulary:
            raise ConfigError(f"there are no {width} likeliest of {vocabulary} tokens")

        def of_batch(batch: TokenBatch) -> tuple[Tensor, ...]:
            def of_chunk(logprobs: Tensor, where: slice) -> tuple[Tensor, ...]:
                top = logprobs.topk(width, dim=-1)
                return sampled(logprobs, batch, where), top.indices.int(), top.values

            return response_values(self.loaded.model, batch, of_chunk)

        return [
            (nats.numpy(), TokenDistributions(ids.numpy(), top.numpy()))
            for nats, ids, top in self._values(requests, of_batch)
        ]

    def _values(
        self, requests: Sequence[ScoreRequest], of_batch: Callable[[TokenBatch], tuple[Tensor, ...]]
    ) -> list[tuple[Tensor, ...]]:
        """Return each request's values, the first of which are its tokens' log-probabilities.

        Requests of the same tokens are computed once.
        """
        check_ids((one.prompt_ids for one in requests), self._vocabulary)
        check_ids((one.response_ids for one in requests), self._vocabulary)
        repeats = repeats_of([tokens_of(one) for one in requests])
        distinct = [requests[index] for index in repeats.firsts]
        found: dict[int, tuple[Tensor, ...]] = {}
        with memory_for("scoring", SCORING_NEEDS), torch.inference_mode():
            for batch in self._scoring_batches(distinct):
                values = [one.cpu() for one in of_batch(batch.to(self._device))]
                self.counts += _pass_counts(batch, distinct)
                parts = zip(*(batch.split(one) for one in values), strict=True)
                for place, part in zip(batch.rows, parts, strict=True):
                    if bool(part[0].isnan().any()):
                        row = repeats.firsts[place]
                        raise NumericsError(f"score request {row} has log-probabilities that are not numbers")
                    found[place] = part
        self.counts += _scoring_counts(requests, repeats.later)
        return [found[kind] for kind in repeats.kinds]

    def _scoring_batches(self, requests: Sequence[ScoreRequest]) -> list[TokenBatch]:
        """Return the requests in passes: prompts that begin alike together, all others right-padded."""
        if not can_branch(self.loaded.model):
            return micro_batches(requests, self._pass_tokens)
        found, alone = branches_of(requests, self._pass_tokens)
        packs = branch_packs(requests, found, self._pass_tokens)
        return packs + micro_batches(requests, self._pass_tokens, indices=alone)

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if not 0 <= sampling.temperature < float("inf") or sampling.max_tokens < 1:
            raise ConfigError(f"not a way to sample: {sampling}", mend="temperature >= 0, max_tokens >= 1")
        longest = max((len(request.prompt_ids) for request in requests), default=1)
        limit = getattr(self.loaded.model.config, "max_position_embeddings", None)
        if limit is not None and longest + sampling.max_tokens > limit:
            raise ConfigError(
                f"prompt of {longest} and response of {sampling.max_tokens} tokens pass the limit {limit}",
                mend="lower rollout.prompt_tokens or rollout.response_tokens",
            )
        check_ids((request.prompt_ids for request in requests), self._vocabulary)


def _pass_counts(batch: TokenBatch, requests: Sequence[ScoreRequest]) -> Counts:
    """Return what a pass padded, and what its rows share."""
    padded = batch.padded_tokens
    contexts = sum(len(requests[row].prompt_ids) for row in batch.rows)
    shared = contexts + sum(batch.response_lengths) + padded - batch.computed_tokens
    return Counts(shared_context_tokens=shared, padded_tokens=padded)


def _scoring_counts(requests: Sequence[ScoreRequest], repeated: Sequence[int]) -> Counts:
    """Return the counts of one call, without those of its passes; ``repeated`` were not computed."""
    contexts = [len(one.prompt_ids) for one in requests]
    responses = [len(one.response_ids) for one in requests]
    return Counts(
        scored_rows=len(requests),
        scored_context_tokens=sum(contexts),
        scored_tokens=sum(responses),
        repeated_rows=len(repeated),
        repeated_tokens=sum(contexts[index] + responses[index] for index in repeated),
    )
