"""Auxiliary losses: by hand, against autograd of the formulas, for any split, and inside the learner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pivotopd.learner import TrainingRow
from pivotopd.methods.base import AuxiliaryLoss
from pivotopd.methods.pivotopd import Likelihood
from pivotopd.methods.sdar import Gate
from pivotopd.methods.skill_sd import ReverseKl
from pivotopd.objective import ppo_loss
from tests.learner_cases import Probe, make_rows, off_policy, policy, section
from tests.test_objective import tokens

Formula = Callable[[Tensor, float, float], Tensor]


def sdar(current: Tensor, old: float, teacher: float) -> Tensor:
    """One token of lambda * sg(sigmoid(beta (lT - lS))) (lT - lS), written out."""
    gate = 1 / (1 + math.exp(-5.0 * (teacher - float(current.detach()))))
    return 0.3 * gate * (teacher - current)


def skill_sd(current: Tensor, old: float, teacher: float) -> Tensor:
    """One token of lambda * rho * (exp(-d) - 1 + d), d = lS - lT, written out."""
    d = current - teacher
    return 0.3 * torch.exp(current - old) * (torch.exp(-d) - 1 + d)


def likelihood(current: Tensor, old: float, teacher: float) -> Tensor:
    return -0.3 * current


PAIRS: list[tuple[AuxiliaryLoss, Formula]] = [
    (Gate(0.3, 5.0), sdar),
    (ReverseKl(0.3), skill_sd),
    (Likelihood(0.3), likelihood),
]
pairs = pytest.mark.parametrize(("loss", "formula"), PAIRS, ids=["sdar", "skill_sd", "nll"])


def one(loss: AuxiliaryLoss, lS: float, lO: float, lT: float) -> tuple[float, float]:  # noqa: N803
    """Value and gradient of one token."""
    current = torch.tensor([lS], dtype=torch.float64, requires_grad=True)
    value = loss(current, torch.tensor([lO], dtype=torch.float64), torch.tensor([lT], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(value.sum(), current)
    return value.item(), gradient.item()


def test_sdar_by_hand() -> None:
    gate = 0.9241418199787566  # sigmoid(5 * 0.5)
    assert one(Gate(0.01, 5.0), -1.0, -1.0, -0.5) == pytest.approx((0.01 * gate * 0.5, -0.01 * gate))


@given(st.floats(-12, 0), st.floats(-12, 0))
def test_sdar_raises_likelihood_and_leaves_what_the_teacher_rejects(current: float, teacher: float) -> None:
    _, gradient = one(Gate(0.01, 5.0), current, -1.0, teacher)
    assert -0.01 <= gradient <= 0.0, "descent never lowers a sampled token"
    if teacher < current - 2:
        assert gradient >= -0.01 * 5e-5
    if teacher > current + 2:
        assert gradient <= -0.0099


def test_skill_sd_by_hand() -> None:
    value, gradient = one(ReverseKl(0.001), -1.0, -1.0, -0.5)
    assert value == pytest.approx(0.001 * (math.exp(0.5) - 1.5))
    assert gradient == pytest.approx(-0.001 * 0.5)


@given(st.floats(-8, 0), st.floats(-8, 0))
def test_skill_sd_at_ratio_one_has_the_reverse_kl_s_score_gradient(current: float, teacher: float) -> None:
    value, gradient = one(ReverseKl(1.0), current, current, teacher)
    assert gradient == pytest.approx(-(teacher - current), abs=1e-9)
    assert value >= -1e-12


def test_skill_sd_stays_finite() -> None:
    for current, old, teacher in ((-300.0, 0.0, 0.0), (0.0, -300.0, -300.0), (-300.0, -300.0, 0.0)):
        assert all(map(math.isfinite, one(ReverseKl(1.0), current, old, teacher)))


# ---------------------------------------------------------------------- inside the objective


def teacher_of(seed: int, old: Tensor) -> Tensor:
    """Teacher scores; a third of the tokens takes no part."""
    generator = torch.Generator().manual_seed(seed + 1)
    values = old + torch.randn(len(old), generator=generator, dtype=torch.float64)
    values[torch.rand(len(old), generator=generator) < 0.33] = math.nan
    return values


@pairs
@given(seed=st.integers(0, 10_000), count=st.integers(1, 30))
@settings(deadline=None)
def test_gradient_is_that_of_the_written_formula(
    loss: AuxiliaryLoss, formula: Formula, seed: int, count: int
) -> None:
    current, old, reference, gain = tokens(seed, count)
    teacher = teacher_of(seed, old)
    current.requires_grad_()
    mask = torch.arange(count) % 3 != 1
    total = int(mask.sum())
    with_it = ppo_loss(current, old, reference, gain, mask, total, 0.2, 0.01, loss, teacher)
    without = ppo_loss(current, old, reference, gain, mask, total, 0.2, 0.01)
    beside = torch.zeros((), dtype=torch.float64)
    for index in range(count):
        if mask[index] and not teacher[index].isnan():
            beside = beside + formula(current[index], old[index].item(), teacher[index].item()) / total
    wanted = torch.autograd.grad(without.loss + beside, current)[0]
    torch.testing.assert_close(torch.autograd.grad(with_it.loss, current)[0], wanted, atol=1e-12, rtol=1e-9)
    assert with_it.auxiliary_loss == pytest.approx(beside.item(), abs=1e-12)
    assert with_it.policy_loss == without.policy_loss
    assert (with_it.tokens, with_it.dropped) == (without.tokens, without.dropped)


@pairs
@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6))
@settings(deadline=None)
def test_any_split_adds_up(loss: AuxiliaryLoss, formula: Formula, seed: int, sizes: list[int]) -> None:
    current, old, reference, gain = tokens(seed, sum(sizes) + 1)
    teacher = teacher_of(seed, old)
    mask = torch.rand(len(old), generator=torch.Generator().manual_seed(seed)) < 0.7
    total = max(int(mask.sum()), 1)
    current.requires_grad_()
    whole = ppo_loss(current, old, reference, gain, mask, total, 0.2, 0.01, loss, teacher)
    wanted = torch.autograd.grad(whole.loss, current, retain_graph=True)[0]
    cut = [x.split([*sizes, 1]) for x in (current, old, reference, gain, mask, teacher)]
    parts = [ppo_loss(*piece[:5], total, 0.2, 0.01, loss, piece[5]) for piece in zip(*cut, strict=True)]
    found = torch.autograd.grad(sum((part.loss for part in parts), torch.zeros(())), current)[0]
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert sum(part.auxiliary_loss for part in parts) == pytest.approx(whole.auxiliary_loss, abs=1e-12)


# ---------------------------------------------------------------------- inside the learner


def rows_with_teacher(model: torch.nn.Module) -> list[TrainingRow]:
    """Off-policy rows; every third takes no part, and one score is not a number."""
    rng = np.random.default_rng(5)
    rows = []
    for index, row in enumerate(off_policy(make_rows(model))):
        scores = (
            None if index % 3 == 1 else row.old_nats + rng.normal(size=len(row.old_nats)).astype(np.float32)
        )
        if index == 5 and scores is not None:
            scores[0] = np.nan
        rows.append(dataclasses.replace(row, teacher_nats=scores))
    return rows


@pytest.mark.parametrize("budget", [10_000, 25])
@pairs
def test_the_learner_s_gradient_is_the_naive_one(loss: AuxiliaryLoss, formula: Formula, budget: int) -> None:
    made = policy()
    rows = rows_with_teacher(made.model)
    assert not rows[5].keep[0], "a score that is not a number leaves the mask"
    total = sum(int(row.keep.sum()) for row in rows)
    naive = torch.zeros(())
    model = policy().model
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        for place, token in enumerate(row.response_ids):
            if row.keep[place]:
                current, old = logprobs[len(row.prompt_ids) + place - 1, token], float(row.old_nats[place])
                ratio, gain = torch.exp(current - old), float(row.advantage[place])
                surrogate = torch.minimum(ratio * gain, torch.clip(ratio, 0.8, 1.2) * gain)
                gap = float(row.reference_nats[place]) - current
                naive = naive + (-surrogate + 0.01 * (torch.exp(gap) - 1 - gap)) / total
                if row.teacher_nats is not None:
                    naive = naive + formula(current, old, float(row.teacher_nats[place])) / total
    naive.backward()
    wanted = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    with Probe(made, section(micro_batch_tokens=budget), loss) as learner:
        (report,) = learner.update(rows, 0)
        found = learner.gradients[0]
    assert (found - wanted).norm() <= 2e-6 * wanted.norm()
    assert report.loss == pytest.approx(naive.item(), rel=1e-4)
    assert report.loss == pytest.approx(report.policy_loss + 0.01 * report.kl_nats + report.auxiliary_loss)
    assert report.auxiliary_loss != 0.0
