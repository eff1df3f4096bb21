"""Can an update keep the token distributions that its method asks for? Asked before any work.

An iteration keeps K ids and log-probabilities of every response token that is scored under privileged text.
How many tokens those will be is not known before; the most that the configuration allows is.
"""

from __future__ import annotations

from typing import Final

from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError
from pivotopd.methods.base import Needs
from pivotopd.student_facts import student_facts
from pivotopd.teacher_section import OracleSection

MOST_NUMBERS: Final = 1 << 28
"""Most log-probabilities that an iteration may keep; with their ids 2 GiB."""


def check_targets(config: RunConfig, needs: Needs) -> None:
    """Refuse distributions wider than the vocabulary, or more of them than can reasonably be kept.

    Args:
        config: The run.
        needs: What its method asks for.

    Raises:
        ConfigError: One of both.
        ArtifactError: The student's folder is missing or damaged.
    """
    if not needs.target_tokens:
        return
    facts, whose = student_facts(config)
    width = facts.head_rows if needs.target_tokens == "all" else needs.target_tokens
    if width > facts.head_rows:
        raise ConfigError(
            f"the {width} likeliest tokens are asked for, and {whose} has {facts.head_rows}",
            where="method.estimator_tokens",
            mend=f"set it to {facts.head_rows} at most, or method.estimator=full",
        )
    tokens = _most_rows(config, needs) * config.rollout.response_tokens
    if tokens * width > MOST_NUMBERS:
        fewer = (
            f"set method.estimator=top_k with at most {MOST_NUMBERS // tokens} method.estimator_tokens, or "
        )
        raise ConfigError(
            f"an iteration would keep up to {tokens * width:,} log-probabilities ({width:,} of each of up to "
            f"{tokens:,} response tokens), more than {MOST_NUMBERS:,}",
            where="method.estimator" if needs.target_tokens == "all" else "method.estimator_tokens",
            mend=(fewer if tokens <= MOST_NUMBERS else "")
            + "lower rollout.tasks, rollout.group_size or rollout.response_tokens",
        )


def _most_rows(config: RunConfig, needs: Needs) -> int:
    """Return how often an iteration can score a row under privileged text, at most."""
    episodes = config.rollout.tasks * config.rollout.group_size
    turns = config.environment.max_turns
    told = needs.lesson and not isinstance(config.teacher, OracleSection)  # the oracle tells no lesson
    whole = episodes * turns * (told + needs.skill + needs.routed_skill + needs.peer)
    pivotal = episodes * min(config.teacher.max_candidates, turns) * needs.gold_hint
    return whole + pivotal + config.recovery.limit * needs.recovery_depth
