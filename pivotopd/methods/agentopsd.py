"""AgentOPSD: how a turn changes the belief in success decides how much of the outcome it gets.

    e_k = sum over the tokens of turn k of ( lT[skill] - lO )      c_k = gamma * c_{k-1} + e_k,  c_0 = 0
    B_k = sigmoid( logit(B_0) + c_k )        B_0 = the group's success rate, within 1e-3 and 1 - 1e-3
    q_k = sign(A) * ( B_k - B_{k-1} )         z = q standardised within the episode
    w_k = clip( 1 + b * z_k, 1 - b, 1 + b )
    A_l = A * ( (1 - lambda) + lambda * w_k )      A = A_RL of the row, its sign is kept

Source: AgentOPSD, arXiv 2608.05987, and ZethWang/AgentOPSD (opsd_utils.py; belief_mult, signed,
mult_lambda 0.5). Ours: the standard deviation is that of the population, with 1e-8 added; a turn whose
skill did not fit into the prompt brings no evidence (e_k = 0); masked tokens bring none either.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pivotopd.methods.advantage import (
    by_episode,
    constant,
    of_tokens,
    outcome_advantages,
    require_signal,
    signal_log_ratio,
)
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import AgentOpsdMethod

BELIEF_FLOOR = 1e-3
STD_FLOOR = 1e-8


class AgentOpsd(Method):
    """Outcome advantage, reshaped turn by turn."""

    def __init__(self, section: AgentOpsdMethod) -> None:
        self.needs = Needs(skill=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: No row was scored under a skill, or scores differ in length.
        """
        del iteration
        require_signal(rows, "skill_nats", every=False)
        outcomes = np.array(outcome_advantages(rows, normalise_std=self._section.normalise_std))
        weights = np.ones(len(rows))
        for members in by_episode(rows):
            turns = [rows[index] for index in members]
            won = {row.episode: row.won for row in rows if row.group == turns[0].group}
            success = sum(won.values()) / len(won)
            weights[members] = self._weights(turns, success, outcomes[members])
        mix = self._section.mix
        return [
            of_tokens(constant(row, float(value * (1.0 - mix + mix * weight))), float(value))
            for row, value, weight in zip(rows, outcomes, weights, strict=True)
        ]

    def _weights(
        self, turns: Sequence[Row], success: float, outcomes: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return w_k of an episode's turns, in order."""
        prior = min(max(success, BELIEF_FLOOR), 1.0 - BELIEF_FLOOR)
        evidence, beliefs = 0.0, [prior]
        for row in turns:
            ratio = signal_log_ratio(row, "skill_nats")
            gained = 0.0 if ratio is None else float(ratio[row.mask].sum(dtype=np.float64))
            evidence = self._section.discount * evidence + gained
            logit = np.log(prior / (1.0 - prior)) + evidence
            beliefs.append(float(1.0 / (1.0 + np.exp(-np.clip(logit, -60.0, 60.0)))))
        change = np.sign(outcomes) * np.diff(beliefs)
        scores = (change - change.mean()) / (change.std() + STD_FLOOR)
        bound = self._section.bound
        return np.asarray(np.clip(1.0 + bound * scores, 1.0 - bound, 1.0 + bound), np.float64)
