"""The parity probe: do an engine and the learner's model hold the same weights?

The engine writes a few responses; the learner's model scores the same tokens. An engine that kept a part of
the old weights gives other log-probabilities than the model that the update assumes, and PPO would silently
train on wrong ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pivotopd.errors import NumericsError
from pivotopd.models.base import PolicyEngine, Request, Sampling, Scorer, ScoreRequest
from pivotopd.seeds import rng_of, seed_of

BOUNDS_NATS: Final = {"float32": 0.01, "bfloat16": 0.5}
"""Largest difference by type of the weights, where none is set. Products in other orders explain less."""
PROMPT_TOKENS: Final = 24
RESPONSE_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Parity:
    """What a probe found.

    Attributes:
        largest_nats: Largest difference of a token's log-probability.
        mean_nats: Mean difference.
        tokens: Tokens compared.
    """

    largest_nats: float
    mean_nats: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences and a bound.

    Args:
        rows: Sequences.
        vocabulary: Tokens that both models know; the prompts are drawn of them.
        bound_nats: Largest difference allowed.
        longest: Most tokens of a prompt with its response.
    """

    rows: int
    vocabulary: int
    bound_nats: float
    longest: int = PROMPT_TOKENS + RESPONSE_TOKENS

    def check(self, engine: PolicyEngine, learner: Scorer) -> Parity:
        """Compare both on the same tokens.

        Args:
            engine: Writes the responses.
            learner: Scores them with the policy that the engine should hold.

        Raises:
            NumericsError: They differ by more than the bound.
        """
        rng = rng_of("parity prompts", self.rows)
        response = max(1, min(RESPONSE_TOKENS, self.longest // 2))
        prompt = max(1, min(PROMPT_TOKENS, self.longest - response))
        requests = [
            Request(rng.integers(0, self.vocabulary, prompt).tolist(), seed_of("parity", row))
            for row in range(self.rows)
        ]
        completions = engine.generate(requests, Sampling(1.0, response))
        scored = learner.score(
            [
                ScoreRequest(one.prompt_ids, other.response_ids.tolist())
                for one, other in zip(requests, completions, strict=True)
            ]
        )
        theirs = np.concatenate([one.logprobs_nats for one in completions])
        ours = np.concatenate(scored)
        apart = np.abs(theirs - ours)
        worst = int(np.argmax(apart))
        if not apart[worst] <= self.bound_nats:
            raise NumericsError(
                f"the engine gives a token the log-probability {theirs[worst]:.4f}, the learner's model "
                f"{ours[worst]:.4f}: {apart[worst]:.4f} nats apart, {self.bound_nats:g} are allowed",
                where=f"parity probe of policy {engine.policy[:12]}",
                mend="the engine does not hold the policy's weights: start the same command again, which "
                "starts a new engine; if a new one differs too, raise engine.parity_bound_nats or take "
                "engine.kind=transformers",
            )
        return Parity(float(apart[worst]), float(apart.mean()), len(apart))
