"""Makes a tiny student on the spot: demonstrations, imitation, and a check of what came out.

The recipe (docs/method.md, The tiny student): the student plays acceptably, makes one typical mistake,
does not recover from it, and obeys a hint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from pivotopd.agent.prompting import Prompter
from pivotopd.config import RunConfig
from pivotopd.environments.alfworld.demonstrations import Demonstration, demonstrations
from pivotopd.environments.alfworld.environment import AlfworldEnvironment
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.generator import PLAIN, TRAIN_SPLIT, generate_games
from pivotopd.environments.alfworld.skill_demonstrations import with_made_up_skills
from pivotopd.environments.alfworld.wording import make_wording, phrases
from pivotopd.environments.base import Wording
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.errors import ConfigError
from pivotopd.imitation import ImitationPlan, ImitationReport, ImitationRow, imitate
from pivotopd.ledger import Counts
from pivotopd.models.checkpoint import Policy, make_policy
from pivotopd.models.codec import TokenizerCodec
from pivotopd.models.tiny import build_model, build_tokenizer
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.prompt_check import check_tiny_student
from pivotopd.seeds import seed_of
from pivotopd.start_check import StartCheck, StartReport

Progress = Callable[[str, int, int], None]
"""Called with a phase (``demonstrate``, ``imitate``, ``check``), how much of it is done, and of how much."""

CHECK_SPLIT: Final = "warm_start_check"
"""Held-out split of the games of the check; no content of it can be in ``train``."""

_GAMES_A_REPORT: Final = 100


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """What a warm start did.

    Attributes:
        demonstrations: Rows that were made.
        prompt_tokens: Mean tokens of their prompts.
        response_tokens: Mean tokens of their responses.
        imitation: What training did.
        start: What the check found.
        spent: What training and check used; the training of a token is counted whenever it is done.
        demonstrate_s: Seconds for games and demonstrations.
        imitate_s: Seconds for training.
        check_s: Seconds for the check.
    """

    demonstrations: int
    prompt_tokens: float
    response_tokens: float
    imitation: ImitationReport
    start: StartReport
    spent: Counts
    demonstrate_s: float
    imitate_s: float
    check_s: float


def warm_start(config: RunConfig, progress: Progress | None = None) -> tuple[Policy, WarmStartReport]:
    """Build, train and check the tiny student of a configuration.

    All that it does depends on the sections ``student``, ``environment``, ``rollout.response_tokens``,
    ``rollout.prompt_tokens`` and ``warm_start``, never on the run's seed.

    Args:
        config: The run.
        progress: Told how far it is.

    Raises:
        ConfigError: The student is not a tiny one, its prompt is not the compact one, or a demonstration
            does not fit the token limits.
        NumericsError: Training diverged.
    """
    told = progress or _silent
    student = check_tiny_student(config)
    wording = make_wording(config.environment.prompt)
    tokenizer = build_tokenizer(phrases())
    policy = make_policy(build_model(student, tokenizer, config.warm_start.seed), tokenizer)
    began = time.perf_counter()
    rows = list(_rows(config, wording, policy.codec, told))
    shown = time.perf_counter()
    section = config.warm_start
    plan = ImitationPlan(
        section.steps, section.batch_rows, section.learning_rate, section.prompt_weight, section.seed
    )
    imitation = imitate(policy.model, rows, plan, lambda step, steps, _: told("imitate", step, steps))
    trained = time.perf_counter()
    start, checked = _check(config, wording, policy, told)
    report = WarmStartReport(
        demonstrations=len(rows),
        prompt_tokens=float(np.mean([len(row.prompt_ids) for row in rows])),
        response_tokens=float(np.mean([len(row.response_ids) for row in rows])),
        imitation=imitation,
        start=start,
        spent=_trained(imitation, section.prompt_weight) + checked,
        demonstrate_s=shown - began,
        imitate_s=trained - shown,
        check_s=time.perf_counter() - trained,
    )
    return policy, report


def _rows(
    config: RunConfig, wording: Wording, codec: TokenizerCodec, told: Progress
) -> Iterator[ImitationRow]:
    """Yield the demonstrations of the warm start's games as token ids."""
    section, environment = config.warm_start, config.environment
    shown = demonstrations(
        _games(config, told),
        section.seed,
        hinted_share=section.hinted_share,
        gap_share=section.gap_share,
        history=environment.history,
        max_turns=environment.max_turns,
        wording=environment.wording,
    )
    for demonstration in with_made_up_skills(shown, section.seed, section.skilled_share):
        yield _encoded(demonstration, wording, codec, config)


def _encoded(
    demonstration: Demonstration, wording: Wording, codec: TokenizerCodec, config: RunConfig
) -> ImitationRow:
    prompt = codec.encode_prompt(wording.prompt(demonstration.view))
    response = codec.encode_response(demonstration.response)
    limits = config.rollout
    if len(response) > limits.response_tokens:
        raise ConfigError(
            f"a demonstrated response has {len(response)} tokens",
            where="rollout.response_tokens",
            mend=f"raise it above {len(response)}",
        )
    return ImitationRow(np.array(prompt, dtype=np.int32), np.array(response, dtype=np.int32))


def _games(config: RunConfig, told: Progress) -> Iterator[Game]:
    """Yield the games to demonstrate: training content, so that no held-out game can be among them."""
    section = config.warm_start
    seed = seed_of("warm start games", section.seed)
    for first in range(0, section.games, _GAMES_A_REPORT):
        told("demonstrate", first, section.games)
        count = min(_GAMES_A_REPORT, section.games - first)
        types = config.environment.generated.task_types
        yield from generate_games(seed_of("block", seed, first), TRAIN_SPLIT, count, types, PLAIN)
    told("demonstrate", section.games, section.games)


def _trained(report: ImitationReport, prompt_weight: float) -> Counts:
    return Counts(
        training_input_tokens=report.tokens,
        trained_tokens=report.tokens if prompt_weight > 0 else report.response_tokens,
        training_padding_tokens=report.padded_tokens,
    )


def _check(config: RunConfig, wording: Wording, policy: Policy, told: Progress) -> tuple[StartReport, Counts]:
    """Play held-out games with the student; return what was found and what it took."""
    section, environment, rollout = config.warm_start, config.environment, config.rollout
    told("check", 0, 1)
    games = generate_games(
        seed_of("warm start check", section.seed),
        CHECK_SPLIT,
        section.check_games,
        environment.generated.task_types,
        PLAIN,
    )
    # The engine of the demonstrations, whatever the run plays.
    played = MeteredEnvironment(AlfworldEnvironment(environment.model_copy(update={"engine": "native"})))
    engine = TransformersEngine(policy)
    check = StartCheck(
        environment=played,
        prompter=Prompter(wording, policy.codec, environment.history, rollout.prompt_tokens),
        generator=engine,
        max_turns=environment.max_turns,
        response_tokens=rollout.response_tokens,
        seed=section.seed,
    )
    report = check.run([task_of(game) for game in games])
    told("check", 1, 1)
    return report, played.counts + engine.counts + Counts(engine_starts=1)


def _silent(phase: str, done: int, of: int) -> None:
    """Tell nobody."""
