"""How likely a policy is to make a recorded mistake again, and to do what the oracle does there.

Paper App. A; see docs/diagnosis.md. An action's probability is a sum over all thoughts that may precede it:

- by sampling: the share of responses, drawn at the recorded prompt, that commit to it. It is unbiased, and as
  coarse as its number of draws;
- after the recorded thought: the log-probability of the action's tokens, exact, also where it is tiny. It is
  conditional on one thought, which argued for the mistake: for the oracle's action it is a low estimate.

Every policy is asked in the same recorded contexts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from pivotopd.agent.prompting import Prompter
from pivotopd.diagnosis.action_scores import ActionTokens, action_tokens, with_action
from pivotopd.diagnosis.bootstrap import Interval, bootstrap_mean
from pivotopd.diagnosis.pivots import replayed
from pivotopd.environments.base import Environment
from pivotopd.models.base import Completion, Generator, Request, Sampling, Scorer, ScoreRequest
from pivotopd.records import Turn
from pivotopd.records_probes import ActionProbability
from pivotopd.rollout import Origin
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Transcript

Action = Literal["mistake", "oracle", "best"]
ACTIONS: tuple[Action, ...] = ("mistake", "oracle", "best")
_Z = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""


class Engine(Generator, Scorer, Protocol):
    """A policy that samples and scores."""


@dataclass(frozen=True, slots=True)
class Context:
    """A recorded context: what a policy saw right before a pivotal mistake.

    Attributes:
        transcript: The failed episode.
        turn: Index of its first pivotal turn.
        best: All actions on a shortest way there, the oracle's preferred one first; none where it has none.
    """

    transcript: Transcript
    turn: int
    best: tuple[str, ...]

    @property
    def row(self) -> Turn:
        """The recorded turn."""
        return self.transcript.turns[self.turn]

    @property
    def oracle_action(self) -> str | None:
        """The oracle's preferred action."""
        return self.best[0] if self.best else None


@dataclass(frozen=True, slots=True)
class ActionShare:
    """One of the actions, over all contexts.

    Attributes:
        action: Which one.
        sampled: Mean over contexts of the share of responses that commit to it.
        sampled_median: Median over contexts of the same.
        scored_median: Median over contexts of its probability after the recorded thought; None without any.
        scored_most: The largest of them.
        scored: Number of contexts with such a score.
    """

    action: Action
    sampled: Interval | None
    sampled_median: float | None
    scored_median: float | None
    scored_most: float | None
    scored: int


def context_of(environment: Environment, transcript: Transcript, turn: int) -> Context:
    """Return the context of a pivotal turn.

    Raises:
        EnvironmentFault: The environment gives no state that an oracle could read, no longer does what was
            recorded, or the oracle's search was given up.
    """
    state = transcript.turns[turn].snapshot
    if state is None:
        begun = Transcript(transcript.task, transcript.episode, transcript.turns[:turn])
        state = replayed(environment, begun)[turn].state
    return Context(transcript, turn, environment.oracle(transcript.task).best_actions(state, None))


def ask(
    contexts: Sequence[Context],
    engine: Engine,
    prompter: Prompter,
    *,
    samples: int,
    sampling: Sampling,
    seed: int,
    origin: Origin,
) -> list[ActionProbability]:
    """Return how likely a policy is to do either action, one row a context.

    Args:
        contexts: Recorded contexts.
        engine: The policy.
        prompter: Rebuilds and checks the recorded prompts for the policy's tokenizer.
        samples: Responses drawn in each context.
        sampling: How they are drawn.
        seed: Seed of the draws, the same for every policy.
        origin: The run and the policy.

    Raises:
        ArtifactError: A recorded prompt cannot be rebuilt: tokenizer or settings are others now.
    """
    prompts = [prompter.rebuilt(context.transcript.turns, context.turn).ids for context in contexts]
    requests = [
        Request(ids, seed_of("action probability", seed, context.row.episode, context.turn, sample))
        for context, ids in zip(contexts, prompts, strict=True)
        for sample in range(samples)
    ]
    completions = engine.generate(requests, sampling) if requests else []
    scores = _scores(contexts, prompts, engine, prompter)
    return [
        _row(context, completions[place * samples :][:samples], scores[place], prompter, sampling, origin)
        for place, context in enumerate(contexts)
    ]


def _scores(
    contexts: Sequence[Context], prompts: Sequence[Sequence[int]], engine: Scorer, prompter: Prompter
) -> list[tuple[float | None, float | None]]:
    """Return the log-probabilities of mistake and oracle action after the recorded thoughts."""
    wording, codec = prompter.wording, prompter.codec
    wanted: list[tuple[int, int, ActionTokens]] = []
    for place, context in enumerate(contexts):
        recorded = context.row.response_ids
        other = context.oracle_action
        found = (
            action_tokens(recorded, wording, codec),
            None if other is None else with_action(recorded, other, wording, codec),
        )
        wanted += [(place, which, one) for which, one in enumerate(found) if one is not None]
    requests = [ScoreRequest(prompts[place], one.response_ids) for place, _, one in wanted]
    table: list[list[float | None]] = [[None, None] for _ in contexts]
    for (place, which, one), nats in zip(wanted, engine.score(requests) if requests else [], strict=True):
        table[place][which] = one.nats(nats)
    return [(mistake, oracle) for mistake, oracle in table]


def _row(
    context: Context,
    completions: Sequence[Completion],
    scores: tuple[float | None, float | None],
    prompter: Prompter,
    sampling: Sampling,
    origin: Origin,
) -> ActionProbability:
    wording, row, episode = prompter.wording, context.row, context.transcript.episode
    done = [_committed(one, prompter) for one in completions]
    mistake = wording.normal_form(row.action) if row.committed else None
    best = [wording.normal_form(action) for action in context.best]
    return ActionProbability(
        run=origin.run,
        iteration=origin.iteration,
        policy=origin.policy,
        episode=episode.episode,
        family=episode.family,
        turn=context.turn,
        mistake=row.action,
        oracle_action=context.oracle_action,
        samples=len(done),
        temperature=sampling.temperature,
        mistakes_drawn=done.count(mistake),
        oracle_drawn=done.count(best[0]) if best else 0,
        best_drawn=sum(action in best for action in done),
        mistake_nats=scores[0],
        oracle_nats=scores[1],
    )


def _committed(completion: Completion, prompter: Prompter) -> str | None:
    """Return the action that a response commits to, in normal form; None without one."""
    reply = prompter.wording.parse(prompter.codec.decode(completion.response_ids.tolist())[0])
    return prompter.wording.normal_form(reply.action) if reply.committed else None


def wilson(hits: int, draws: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a probability after some hits among independent draws."""
    if not draws:
        return 0.0, 1.0
    share, weight = hits / draws, _Z * _Z / draws
    middle = share + weight / 2
    spread = math.sqrt(share * (1 - share) * weight + weight * weight / 4)
    return max(0.0, (middle - spread) / (1 + weight)), min(1.0, (middle + spread) / (1 + weight))


def share_of(row: ActionProbability, action: Action) -> float:
    """Return the share of a row's responses that commit to an action; 0 without responses."""
    hits = {"mistake": row.mistakes_drawn, "oracle": row.oracle_drawn, "best": row.best_drawn}[action]
    return hits / max(1, row.samples)


def _nats_of(row: ActionProbability, action: Action) -> float | None:
    return {"mistake": row.mistake_nats, "oracle": row.oracle_nats, "best": None}[action]


def summarise(rows: Iterable[ActionProbability], *, draws: int, seed: int) -> list[ActionShare]:
    """Return each action's probability over all contexts; the order of the rows does not matter.

    Args:
        rows: One row a context, of one policy.
        draws: Resamples of the intervals.
        seed: Seed of the resamples.
    """
    ordered = sorted(rows, key=lambda row: row.episode)
    found = []
    for action in ACTIONS:
        shares = [share_of(row, action) for row in ordered]
        nats = {
            "mistake": [row.mistake_nats for row in ordered],
            "oracle": [row.oracle_nats for row in ordered],
        }
        scored = [math.exp(value) for value in nats.get(action, []) if value is not None]
        found.append(
            ActionShare(
                action,
                bootstrap_mean(shares, draws=draws, seed=seed),
                float(np.median(shares)) if shares else None,
                float(np.median(scored)) if scored else None,
                max(scored, default=None),
                len(scored),
            )
        )
    return found


def change_of(
    rows: Iterable[ActionProbability],
    before: Iterable[ActionProbability],
    action: Action,
    *,
    draws: int,
    seed: int,
) -> Interval | None:
    """Return the mean difference of an action's sampled shares between two policies, context by context.

    Args:
        rows: One policy's rows.
        before: The other's, of the same contexts; those that only one has are left out.
        action: The action.
        draws: Resamples of the interval.
        seed: Seed of the resamples.
    """
    earlier = {(row.episode, row.turn): share_of(row, action) for row in before}
    pairs = [
        share_of(row, action) - earlier[row.episode, row.turn]
        for row in sorted(rows, key=lambda row: row.episode)
        if (row.episode, row.turn) in earlier
    ]
    return bootstrap_mean(pairs, draws=draws, seed=seed)
