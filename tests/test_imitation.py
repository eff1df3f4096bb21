"""Imitation: it fits what it is shown, from a seed, and stops when numbers go wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from pivotopd.config import TinyStudent
from pivotopd.errors import ConfigError, NumericsError
from pivotopd.imitation import (
    ImitationPlan,
    ImitationRow,
    _batches,
    _loss,
    _padded,
    imitate,
    learning_rate_factor,
)
from pivotopd.models.tiny import build_model, build_tokenizer

SMALL = TinyStudent(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=64)
TOKENIZER = build_tokenizer([" a", " b", " c", " d"])
PLAN = ImitationPlan(steps=60, batch_rows=4, learning_rate=1e-2, prompt_weight=0.1, seed=0)


def _row(prompt: list[int], response: list[int]) -> ImitationRow:
    return ImitationRow(np.array(prompt, dtype=np.int32), np.array(response, dtype=np.int32))


ROWS = [_row([10 + i, 20, 2], [30 + i, 40 + i, 1][: 2 + i % 2]) for i in range(6)]


def test_a_handful_of_rows_is_learned_by_heart() -> None:
    model = build_model(SMALL, TOKENIZER, 0)
    told: list[tuple[int, int, float]] = []
    plan = ImitationPlan(steps=120, batch_rows=6, learning_rate=1e-2, prompt_weight=0.0, seed=0)
    report = imitate(model, ROWS, plan, lambda step, steps, loss: told.append((step, steps, loss)))
    for row in ROWS:
        ids = torch.tensor([[*row.prompt_ids.tolist(), *row.response_ids.tolist()]])
        with torch.no_grad():
            said = model(ids).logits[0].argmax(-1)[len(row.prompt_ids) - 1 : -1]
        assert said.tolist() == row.response_ids.tolist()
    assert [step for step, _, _ in told] == [20, 40, 60, 80, 100, 120]
    assert told[-1][2] == report.loss_nats < told[0][2]
    assert not model.training
    assert report.tokens == 120 * sum(len(row.prompt_ids) + len(row.response_ids) for row in ROWS)


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    weights = []
    for seed in (0, 0, 1):
        model = build_model(SMALL, TOKENIZER, 0)
        imitate(model, ROWS, ImitationPlan(5, 2, 1e-3, 0.1, seed))
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_loss_is_the_weighted_mean_and_padding_counts_for_nothing() -> None:
    model = build_model(SMALL, TOKENIZER, 0)
    rows = [_row([5, 6], [7]), _row([8, 9, 10], [11, 12, 13])]
    total = weight = 0.0
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids.tolist(), *row.response_ids.tolist()]])
        with torch.no_grad():
            losses = functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        prompt = len(row.prompt_ids) - 1
        total += 0.25 * float(losses[:prompt].sum()) + float(losses[prompt:].sum())
        weight += 0.25 * prompt + len(row.response_ids)
    with torch.no_grad():
        assert math.isclose(float(_loss(model, *_padded(rows, 0.25))), total / weight, rel_tol=1e-5)


def test_an_epoch_shows_every_row_once() -> None:
    rows = [_row([5] * (1 + i % 7), [1]) for i in range(300)]
    batches = _batches(rows, ImitationPlan(1, 4, 1.0, 0.0, 0))
    epochs = [[next(batches) for _ in range(75)] for _ in range(2)]
    assert [sorted(index for batch in epoch for index in batch) for epoch in epochs] == [list(range(300))] * 2
    assert epochs[0] != epochs[1]
    spread = [len({len(rows[index].prompt_ids) for index in batch}) for batch in epochs[0]]
    assert sum(spread) / len(spread) < 2


def test_learning_rate_rises_then_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(101)]
    assert factors[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert factors[100] == pytest.approx(0.0, abs=1e-12)
    assert learning_rate_factor(0, 1) == 1.0


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="6 demonstrations"):
        imitate(build_model(SMALL, TOKENIZER, 0), ROWS, ImitationPlan(1, 7, 1e-3, 0.1, 0))


def test_a_loss_that_is_not_finite_stops_training() -> None:
    model = build_model(SMALL, TOKENIZER, 0)
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(NumericsError, match="nan"):
        imitate(model, ROWS, PLAN)
