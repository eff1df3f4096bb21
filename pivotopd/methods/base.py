"""The interface of a method: rows and frozen-policy signals in, one advantage a response token out.

The loop, the stages and the loss never name a method. Symbols as in docs/method.md, Notation: lO is the
frozen student's log-probability without a hint, lT the same with one, A_RL the group-relative advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Nats = npt.NDArray[np.float32]
Source = Literal["rollout", "recovery"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be computed before a method's advantages.

    Attributes:
        labels: The teacher reads finished episodes.
        recovery_depth: Recovery turns after each pivotal turn (K); 0 for none.
        gold_hint: Pivotal rollout rows are scored under the gold hint.
        lesson: Every rollout row is scored under the episode's lesson.
    """

    labels: bool = False
    recovery_depth: int = 0
    gold_hint: bool = False
    lesson: bool = False


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


@dataclass(frozen=True, slots=True)
class TokenAdvantage:
    """Advantage of one row's tokens.

    Attributes:
        total: (R,) float32, what enters PPO.
        outcome: Group-relative part, equal for all tokens.
        prevention, recovery, lesson: (R,) weighted parts; empty where the row has none.
    """

    total: Nats
    outcome: float
    prevention: Nats = field(default_factory=lambda: np.zeros(0, np.float32))
    recovery: Nats = field(default_factory=lambda: np.zeros(0, np.float32))
    lesson: Nats = field(default_factory=lambda: np.zeros(0, np.float32))


class Method(Protocol):
    """A method: its needs, its formula."""

    needs: Needs

    def advantages(self, rows: Sequence[Row]) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; rows of one update come together, groups complete."""
        ...
