"""OPSD: the self-teacher with a skill in its prompt, on every response; no outcome.

    A_l = coefficient * ( lT[skill] - lO )

    with estimator=top_k or full:  A_l = 0, and the auxiliary loss
    aux_l = coefficient * D_beta( pi_bar(.|skill), pi_theta )       over the likely, or all, tokens

Source: OPSD, arXiv 2601.18734, in the form of PivotOPD's comparison (its App. A, D.3), where it is called
standard OPD: the sampled token's log-ratio in the clipped surrogate, coefficient 1, outcome advantage 0.
The original minimises a generalised Jensen-Shannon divergence over the whole vocabulary to a fixed first
teacher that has the solution; the other estimators are that divergence, to the teacher of the iteration. A
row whose skill did not fit into the prompt has advantage 0 and no divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pivotopd.methods.advantage import constant, of_tokens, require_signal, signal_log_ratio, targets
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import OpsdMethod


class Opsd(Method):
    """Reverse-KL score gradient, or a whole divergence, to the skill-conditioned self-teacher."""

    def __init__(self, section: OpsdMethod) -> None:
        self.needs = Needs(skill=True, target_tokens=section.target_tokens)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: No row was scored under a skill, or scores differ in length or lack distributions.
        """
        del iteration
        require_signal(rows, "skill_nats", every=False)
        return [self._of_row(row) for row in rows]

    def _of_row(self, row: Row) -> TokenAdvantage:
        ratio, weight = signal_log_ratio(row, "skill_nats"), self._section.coefficient
        if self.needs.target_tokens:
            drawn = targets(row, "skill", weight, self._section.beta)
            return replace(of_tokens(constant(row, 0.0)), targets=drawn)
        return of_tokens(constant(row, 0.0) if ratio is None else weight * ratio)
