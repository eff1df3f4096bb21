"""OPD: a larger model scores the student's own tokens; no outcome.

    A_l = coefficient * ( lT[larger model] - lO )

Source: on-policy distillation by the reverse KL's score gradient (MiniLLM, arXiv 2306.08543; GKD, arXiv
2306.13649), one sampled token at a time. PivotOPD uses it in its SWE-Bench experiment (App. D.6); its
"standard OPD" elsewhere is OPSD, with the student as its own teacher. Both models must share a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.methods.advantage import constant, of_tokens, require_signal, signal_log_ratio
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import OpdMethod


class Opd(Method):
    """Reverse-KL score gradient to a larger model."""

    def __init__(self, section: OpdMethod) -> None:
        self.needs = Needs(larger_teacher=True)
        self._section = section

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order; the iteration plays no part.

        Raises:
            ArtifactError: A rollout row was not scored by the larger model, or scores differ in length.
        """
        del iteration
        require_signal(rows, "teacher_nats", every=True)
        ratios = [signal_log_ratio(row, "teacher_nats") for row in rows]
        return [
            of_tokens(constant(row, 0.0) if ratio is None else self._section.coefficient * ratio)
            for row, ratio in zip(rows, ratios, strict=True)
        ]
