"""OPSD: the self-teacher with a skill in its prompt, on every response; no outcome.

    A_l = coefficient * ( lT[skill] - lO )

Source: OPSD, arXiv 2601.18734, in the form of PivotOPD's comparison (its App. A, D.3), where it is called
standard OPD: the sampled token's log-ratio in the clipped surrogate, coefficient 1, outcome advantage 0.
The original minimises a generalised Jensen-Shannon divergence over the whole vocabulary to a fixed first
teacher that has the solution. A row whose skill did not fit into the prompt has advantage 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, require_signal, signal_log_ratio
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import OpsdMethod


class Opsd(Method):
    """Reverse-KL score gradient to the skill-conditioned self-teacher."""

    def __init__(self, section: OpsdMethod) -> None:
        self.needs = Needs(skill=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: No row was scored under a skill, or scores differ in length.
        """
        del iteration
        require_signal(rows, "skill_nats", every=False)
        ratios = [signal_log_ratio(row, "skill_nats") for row in rows]
        return [
            of_tokens(constant(row, 0.0) if ratio is None else self._section.coefficient * ratio)
            for row, ratio in zip(rows, ratios, strict=True)
        ]
