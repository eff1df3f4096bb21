"""PivotOPD: outcome, prevention at pivotal turns, recovery right after them, lesson on every turn.

    recovery rows:  A_l = w_rec * clip(lT[recovery hint] - lO, -delta, +delta)     clipped before the weight
    rollout rows:   A_l = A_RL
                        + w_prev * (lT[gold hint] - lO)     on pivotal turns, not clipped
                        + w_traj * (lT[lesson] - lO)        on turns scored with a lesson

    with recovery_objective=nll:  A_l = 0 on recovery rows, and the auxiliary loss  -w_rec * lS
                                  (negative log-likelihood, the true gradient of the forward KL)

    with estimator=top_k or full (q: the self-teacher under the hint or lesson, p: the current student):
    A_l = A_RL on rollout rows, 0 on recovery rows, and the auxiliary loss, summed over likely or all tokens
    aux_l = w_prev * KL( p || q[gold hint] ) + w_traj * KL( p || q[lesson] )    rollout rows
    aux_l = w_rec * KL( q[recovery hint] || p )                                 recovery rows, not clipped

Source: PivotOPD paper (arXiv 2609.40285), Eqs. 4-7 and App. B. Recovery rows carry no outcome advantage
and take no part in group statistics, so a group in which every episode fails still trains on its
recoveries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pivotopd.errors import ArtifactError
from pivotopd.methods.advantage import constant, log_ratio, of_tokens, outcome_advantages, targets
from pivotopd.methods.base import FORWARD, REVERSE, Method, Nats, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import PivotOpdMethod

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Negative log-likelihood of recovery responses, weighted; neither ratio nor clip."""

    weight: float

    def __call__(self, lS: Tensor, lO: Tensor, lT: Tensor) -> Tensor:  # noqa: N803 - the field's symbols
        """Return the (N,) loss; see :class:`~pivotopd.methods.base.AuxiliaryLoss`."""
        del lO, lT
        return -self.weight * lS


class PivotOpd(Method):
    """The paper's method; a weight of zero leaves its part out and asks for no score."""

    def __init__(self, section: PivotOpdMethod, recovery_depth: int) -> None:
        self._section = section
        self.needs = Needs(
            labels=True,
            recovery_depth=recovery_depth if section.recovery_weight > 0 else 0,
            gold_hint=section.prevention_weight > 0,
            lesson=section.lesson_weight > 0,
            target_tokens=section.target_tokens,
        )
        if section.recovery_objective == "nll":
            self.auxiliary = Likelihood(section.recovery_weight)

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: A recovery row was not scored under its hint, or scores differ in length.
        """
        del iteration
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [
            self._recovery(row) if row.source == "recovery" else self._rollout(row, outcome)
            for row, outcome in zip(rows, outcomes, strict=True)
        ]

    def _recovery(self, row: Row) -> TokenAdvantage:
        if row.hinted_nats is None:
            raise ArtifactError(
                "a recovery row has no log-probabilities under its hint",
                where=f"episode {row.episode}",
                mend="rerun the stage that scored the rows",
            )
        if self.needs.target_tokens:
            mix = REVERSE if self._section.reverse_recovery else FORWARD
            drawn = targets(row, "hinted", self._section.recovery_weight, mix)
            return replace(of_tokens(constant(row, 0.0)), targets=drawn)
        if self.auxiliary is not None:
            return TokenAdvantage(total=constant(row, 0.0), outcome=0.0, auxiliary_nats=row.hinted_nats)
        bound = self._section.recovery_clip_nats
        ratio = np.clip(log_ratio(row.hinted_nats, row.plain_nats, row), -bound, bound)
        weighted: Nats = np.asarray(self._section.recovery_weight * ratio, np.float32)
        return TokenAdvantage(total=weighted, outcome=0.0, recovery=weighted)

    def _rollout(self, row: Row, outcome: float) -> TokenAdvantage:
        if self.needs.target_tokens:
            drawn = targets(row, "hinted", self._section.prevention_weight, REVERSE)
            drawn += targets(row, "lesson", self._section.lesson_weight, REVERSE)
            return replace(of_tokens(constant(row, outcome), outcome), targets=drawn)
        prevention = _part(self._section.prevention_weight, row.hinted_nats, row)
        lesson = _part(self._section.lesson_weight, row.lesson_nats, row)
        total = constant(row, outcome)
        for part in (prevention, lesson):
            if part is not None:
                total = total + part
        empty = np.zeros(0, np.float32)
        return TokenAdvantage(
            total=total,
            outcome=outcome,
            prevention=empty if prevention is None else prevention,
            lesson=empty if lesson is None else lesson,
        )


def _part(weight: float, hinted: Nats | None, row: Row) -> Nats | None:
    """A weighted log-ratio, or None where the row has no such hint or the weight is zero."""
    if hinted is None or weight == 0.0:
        return None
    return np.asarray(weight * log_ratio(hinted, row.plain_nats, row), np.float32)
