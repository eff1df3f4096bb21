"""The interface of a method: rows and frozen-policy signals in, one advantage a response token out.

The loop, the stages and the loss never name a method. Symbols as in docs/method.md, Notation: lO is the
frozen student's log-probability without a hint, lT a teacher's of the same token, lS the current
student's, A_RL the group-relative advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pivotopd.depth import Depth
from pivotopd.models.base import TokenDistributions

if TYPE_CHECKING:
    from torch import Tensor

Nats = npt.NDArray[np.float32]
Source = Literal["rollout", "recovery"]
TargetTokens = int | Literal["all"]

FORWARD, REVERSE = 0.0, 1.0
"""Mix of a target: KL( target || student ), and KL( student || target )."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be computed before a method's advantages.

    Attributes:
        labels: The teacher reads finished episodes.
        recovery_depth: Recovery turns after each pivotal turn (K); 0 for none.
        gold_hint: Pivotal rollout rows are scored under the gold hint.
        lesson: Every rollout row is scored under the episode's lesson.
        peer: Rollout rows are scored under the first successful other episode of their group.
        action_span: The tokens of each rollout row's action are marked.
        skill: Every rollout row is scored under a skill of the bank.
        routed_skill: Every rollout row is scored under the skill that an analyser wrote for it.
        skill_prompts: Training prompts hold skills of the bank.
        larger_teacher: A larger model with the same tokenizer scores every rollout row.
        depth_cut: Rollouts are cut at a depth that the method sets.
        depth_probes: That depth follows from what earlier iterations found.
        target_tokens: Ids of each response token (K) whose log-probabilities are kept wherever the student is
            scored under privileged text; all for the whole vocabulary, 0 for the sampled token alone.
    """

    labels: bool = False
    recovery_depth: int = 0
    gold_hint: bool = False
    lesson: bool = False
    peer: bool = False
    action_span: bool = False
    skill: bool = False
    routed_skill: bool = False
    skill_prompts: bool = False
    larger_teacher: bool = False
    depth_cut: bool = False
    depth_probes: bool = False
    target_tokens: TargetTokens = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One training row as a method sees it.

    Attributes:
        episode: Id of its episode.
        group: Id of its group.
        source: Rollout or recovery.
        episode_return: Plain return of its episode.
        penalty: Invalid-action penalty of this row, >= 0.
        plain_nats: (R,) lO.
        hinted_nats: (R,) lT under the gold or recovery hint, or None.
        lesson_nats: (R,) lT under the lesson, or None.
        mask: (R,) False where a token must not train (a truncated response).
        turn: Index of the turn in its episode, from 0.
        observation_key: Equal for two rows of a group in which the student saw the same observation.
        won: Its episode was won.
        skill_nats: (R,) lT under a skill, or None.
        peer_nats: (R,) lT under a successful peer episode, or None.
        teacher_nats: (R,) lT of a larger model, or None.
        action_mask: (R,) True where a token is part of the action, or None.
        hinted_distributions, lesson_distributions, skill_distributions: (R, K) what stands beside
            ``hinted_nats``, ``lesson_nats`` and ``skill_nats`` where the method needs distributions.
    """

    episode: str
    group: str
    source: Source
    episode_return: float
    penalty: float
    plain_nats: Nats
    hinted_nats: Nats | None
    lesson_nats: Nats | None
    mask: npt.NDArray[np.bool_]
    turn: int = 0
    observation_key: str = ""
    won: bool = False
    skill_nats: Nats | None = None
    peer_nats: Nats | None = None
    teacher_nats: Nats | None = None
    action_mask: npt.NDArray[np.bool_] | None = None
    hinted_distributions: TokenDistributions | None = None
    lesson_distributions: TokenDistributions | None = None
    skill_distributions: TokenDistributions | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Frozen distributions that a row's tokens are drawn to; see :mod:`pivotopd.target_loss`.

    Attributes:
        distributions: (R, K) of the self-teacher.
        weight: Weight of the divergence.
        mix: beta of the generalised Jensen-Shannon divergence: FORWARD, REVERSE, or between them.
    """

    distributions: TokenDistributions
    weight: float
    mix: float


@dataclass(frozen=True, slots=True)
class TokenAdvantage:
    """Advantage of one row's tokens.

    Attributes:
        total: (R,) float32, what enters PPO.
        outcome: Group-relative part, equal for all tokens.
        prevention, recovery, lesson: (R,) weighted parts; empty where the row has none.
        auxiliary_nats: (R,) lT of the method's auxiliary loss; None where the row takes no part in it.
        targets: What the auxiliary loss of a method with targets draws the row's tokens to.
    """

    total: Nats
    outcome: float
    prevention: Nats = field(default_factory=lambda: np.zeros(0, np.float32))
    recovery: Nats = field(default_factory=lambda: np.zeros(0, np.float32))
    lesson: Nats = field(default_factory=lambda: np.zeros(0, np.float32))
    auxiliary_nats: Nats | None = None
    targets: tuple[Target, ...] = ()


class AuxiliaryLoss(Protocol):
    """A loss beside PPO, on the current student's log-probabilities; a method has at most one.

    One over distributions instead of sampled tokens is not a function but data: the targets of its rows.
    """

    def __call__(self, lS: Tensor, lO: Tensor, lT: Tensor) -> Tensor:  # noqa: N803 - the field's symbols
        """Return the (N,) weighted loss of flat tokens; its gradient goes through lS only.

        The caller adds it up and divides by the trained tokens of the mini-batch, as it does with PPO.
        """
        ...


class Method(Protocol):
    """A method: its needs, its formula, and at most one loss beside PPO."""

    needs: Needs
    auxiliary: AuxiliaryLoss | None = None

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; rows of one update come together, groups complete.

        Args:
            rows: All rows of the update.
            iteration: Training iteration, from 0, for coefficients that change with time.
        """
        ...

    def at_depth(self, depth: Depth) -> Method:
        """Return this method with what earlier probes of depth have found; most have no use for it."""
        del depth
        return self

    def next_depth(self, rows: Sequence[Row], iteration: int) -> Depth:
        """Return what probes have found after an iteration, given its scored rows."""
        del rows, iteration
        return Depth()
