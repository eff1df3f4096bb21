"""A tiny policy, rows for it, and a learner that shows its gradients; for the tests and their worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pivotopd.config import TinyStudent, UpdateSection
from pivotopd.learner import Learner, TrainingRow
from pivotopd.methods.base import AuxiliaryLoss
from pivotopd.models.batching import micro_batches
from pivotopd.models.checkpoint import Policy, make_policy
from pivotopd.models.logprobs import response_logprobs
from pivotopd.models.tiny import build_model, build_tokenizer
from pivotopd.seeds import rng_of

MASKED = 3


@dataclass(frozen=True)
class Case:
    """One configuration whose gradient must not differ from the naive one."""

    stage: int
    budget: int
    rows: int

    @property
    def name(self) -> str:
        return f"stage{self.stage}-budget{self.budget}-rows{self.rows}"


CASES = [
    Case(0, 60, 11),
    Case(1, 10_000, 11),
    Case(1, 25, 11),
    Case(2, 1, 11),  # every row a micro-batch of its own; 6 and 5 on two ranks
    Case(3, 40, 11),
    Case(2, 60, 1),  # the second of two ranks has no row at all
]


def policy(dtype: str = "float32") -> Policy:
    student = TinyStudent(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=48)
    tokenizer = build_tokenizer(["go to", "look"])
    made = make_policy(build_model(student, tokenizer, 0), tokenizer)
    if dtype == "bfloat16":
        made.model.bfloat16()
    return made


def section(**changes: object) -> UpdateSection:
    base = {"learning_rate": 1e-3, "mini_batch_rows": 11, "micro_batch_tokens": 60}
    return UpdateSection.model_validate({**base, **changes})


@dataclass(frozen=True)
class Scored:
    prompt_ids: list[int]
    response_ids: list[int]


def make_rows(model: torch.nn.Module, count: int = 11) -> list[TrainingRow]:
    """Random rows on-policy up to noise; row 3 is masked whole, row 4 in part."""
    rng = rng_of("rows of the learner's tests")
    texts = [
        Scored(
            rng.integers(3, 200, rng.integers(2, 20)).tolist(),
            rng.integers(3, 200, rng.integers(2, 12)).tolist(),
        )
        for _ in range(count)
    ]
    old: list[np.ndarray] = [np.zeros(0)] * count
    with torch.no_grad():
        for batch in micro_batches(texts, 1000):
            for place, values in zip(batch.rows, batch.split(response_logprobs(model, batch)), strict=True):
                old[place] = values.numpy()
    rows = []
    for index, (text, exact) in enumerate(zip(texts, old, strict=True)):
        size = len(text.response_ids)
        mask = np.full(size, index != MASKED)
        mask[:1] &= index != MASKED + 1
        advantage, noise = rng.normal(size=(2, size)).astype(np.float32)
        rows.append(
            TrainingRow(
                text.prompt_ids,
                text.response_ids,
                advantage,
                exact,
                exact + 0.1 * noise,
                mask,
                index % 3 == 0,
            )
        )
    return rows


def off_policy(rows: list[TrainingRow]) -> list[TrainingRow]:
    """The same rows with old log-probabilities that are off, so that some ratios are clipped."""
    rng = rng_of("off policy")
    return [
        TrainingRow(
            row.prompt_ids,
            row.response_ids,
            row.advantage,
            (row.old_nats + 0.3 * rng.normal(size=len(row.old_nats))).astype(np.float32),
            row.reference_nats,
            row.mask,
            row.is_recovery,
        )
        for row in rows
    ]


class Probe(Learner):
    """Keeps the whole gradient of each step, before clipping."""

    def __init__(self, made: Policy, config: UpdateSection, auxiliary: AuxiliaryLoss | None = None) -> None:
        super().__init__(made, config, auxiliary=auxiliary)
        self.gradients: list[Tensor] = []

    def _apply(self) -> tuple[float, bool]:
        from deepspeed.utils import safe_get_full_grad

        parts = [
            weight.grad if self._config.zero_stage == 0 else safe_get_full_grad(weight)
            for weight in self._engine.module.parameters()
        ]
        self.gradients.append(torch.cat([part.detach().flatten().clone() for part in parts]))
        return super()._apply()


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([weight.detach().float().flatten() for weight in model.parameters()]).clone()


def gradient_of(case: Case) -> Tensor:
    made = policy()
    rows = off_policy(make_rows(made.model))[: case.rows]
    config = section(zero_stage=case.stage, micro_batch_tokens=case.budget)
    with Probe(made, config) as learner:
        learner.update(rows, 0)
        return learner.gradients[0]
