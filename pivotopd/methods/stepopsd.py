"""StepOPSD: a successful peer episode, shown as hindsight, reshapes the outcome over the tokens of an action.

    w_l = clip( 2 sigmoid( sign(A) * (lT[peer] - lO) ), 1 - alpha, 1 + alpha )
    B_l = (1 - lambda) A + lambda * w_l * A                        tokens of the action
    A_l = B_l * |A| / mean over the action's tokens of |B|         so every step has the same mean budget |A|
    A_l = A                                                        other tokens, and rows without a peer

A is A_RL of the row, lambda falls in a line to 0. The peer is the first successful episode of the group,
in the order of samples, other than the row's own; its actions are shown.

Source: StepOPSD, arXiv 2605.27140, as described by third parties; no code is known. The scale of the
equal-step normalisation, and that only other episodes are peers, are ours. In PivotOPD's comparison the
teacher is the student of the same iteration; the original refreshes it every 10 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivotopd.errors import ArtifactError
from pivotopd.methods.advantage import constant, falling, log_ratio, of_tokens, outcome_advantages
from pivotopd.methods.base import Method, Nats, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import StepOpsdMethod


class StepOpsd(Method):
    """Outcome, reshaped inside the action."""

    def __init__(self, section: StepOpsdMethod) -> None:
        self.needs = Needs(peer=True, action_span=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order.

        Raises:
            ArtifactError: A row with a peer's score has no marked action, or scores differ in length.
        """
        mix = falling(self._section.mix, self._section.mix_iterations, iteration)
        outcomes = outcome_advantages(rows, normalise_std=self._section.normalise_std)
        return [
            of_tokens(self._reshaped(row, value, mix), value)
            for row, value in zip(rows, outcomes, strict=True)
        ]

    def _reshaped(self, row: Row, outcome: float, mix: float) -> Nats:
        total = constant(row, outcome)
        if row.peer_nats is None or outcome == 0.0:
            return total
        span = row.action_mask
        if span is None:
            raise ArtifactError(
                "a row has a peer's score but no marked action",
                where=f"episode {row.episode}, turn {row.turn}",
                mend="rerun the stage that scored the rows",
            )
        if not span.any():
            return total
        ratio = log_ratio(row.peer_nats, row.plain_nats, row)[span].astype(np.float64)
        weight = 2.0 / (1.0 + np.exp(-np.clip(np.sign(outcome) * ratio, -30.0, 30.0)))
        weight = np.clip(weight, 1.0 - self._section.bound, 1.0 + self._section.bound)
        shape = 1.0 - mix + mix * weight  # B / A
        total[span] = outcome * shape / shape.mean()
        return total
