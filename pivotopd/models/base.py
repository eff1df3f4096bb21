"""What a policy engine offers: token ids in, token ids and log-probabilities out.

Legend: B rows, R response tokens of a row, K ids that a token's distribution is kept at, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from pivotopd.ledger import Counts

TokenIds = npt.NDArray[np.int32]
Nats = npt.NDArray[np.float32]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Training needs the full support, so there is no top-k and no top-p.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        max_tokens: Longest response; a response that reaches it without an end token is cut.
    """

    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue; ``seed`` alone decides its random draws, whatever else is in the batch."""

    prompt_ids: Sequence[int]
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled response.

    Attributes:
        response_ids: (R,) int32, with the end token where it was sampled.
        logprobs_nats: (R,) float32, of each sampled token at the sampling temperature, full support (at
            temperature 0: at temperature 1).
        finish_reason: ``stop`` at an end token, ``length`` when cut.
        cached_tokens: Tokens of its prompt that the engine had computed before, for another prompt.
    """

    response_ids: TokenIds
    logprobs_nats: Nats
    finish_reason: FinishReason
    cached_tokens: int = 0


def generation_counts(requests: Sequence[Request], completions: Sequence[Completion]) -> Counts:
    """Return the counts of one batch of requests that was answered."""
    return Counts(
        prompts=len(requests),
        prompt_tokens=sum(len(request.prompt_ids) for request in requests),
        cached_prompt_tokens=sum(completion.cached_tokens for completion in completions),
        generated_tokens=sum(len(completion.response_ids) for completion in completions),
        rounds=int(bool(requests)),
    )


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A prompt and the response whose tokens are scored under it."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class TokenDistributions:
    """What a policy held likely at each response token: its K most likely ids, the likeliest first.

    Attributes:
        ids: (R, K) int32.
        nats: (R, K) float32, their log-probabilities at temperature 1 over the whole vocabulary.
    """

    ids: TokenIds
    nats: Nats


class Generator(Protocol):
    """Samples responses."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return one completion a request, in order. A request's result does not depend on its neighbours."""
        ...


class Scorer(Protocol):
    """Scores given responses without gradient."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        """Return the (R,) log-probabilities at temperature 1 of each request's response tokens."""
        ...

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        """Return the same, and in the same pass each token's ``top_tokens`` likeliest ids; None for all V."""
        ...


class PolicyEngine(Generator, Scorer, Protocol):
    """An engine that outlives stages: it has one policy, and takes the next one in place.

    Attributes:
        policy: Digest of the work that made the loaded weights.
        counts: What was computed so far.
    """

    policy: str
    counts: Counts

    def reload(self, folder: Path, policy: str) -> None:
        """Replace the weights in place and forget what was computed with the old ones.

        Args:
            folder: Model folder of the same shape and tokenizer.
            policy: Digest of the work that made it.

        Raises:
            ArtifactError: The folder is damaged, or its weights do not fit.
            EngineFault: The engine has ended.
        """
        ...

    def close(self) -> None:
        """End what the engine runs and free its memory; it is of no use afterwards."""
        ...


class Codec(Protocol):
    """Text to prompt ids and response ids to text, for one tokenizer."""

    fingerprint: str

    def encode_prompt(self, message: str) -> list[int]:
        """Return the ids of one user message, through the chat template where the tokenizer has one."""
        ...

    def encode_response(self, text: str) -> list[int]:
        """Return the ids of a response that was written, not sampled (demonstrations), end token included."""
        ...

    def decode(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return the response text without special tokens, and whether bytes had to be escaped."""
        ...
