"""The loss against hand-computed numbers, autograd of the naive formula, and any split of the tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pivotopd.objective import KL_BOUND_NATS, low_variance_kl, ppo_loss


def tokens(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
    current = old + 0.5 * torch.randn(count, generator=generator, dtype=torch.float64)
    reference = old + 0.5 * torch.randn(count, generator=generator, dtype=torch.float64)
    return current, old, reference, torch.randn(count, generator=generator, dtype=torch.float64)


def test_hand_computed() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    gain = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0])
    old = torch.full((5,), -2.0)
    current = (old + ratio.log()).requires_grad_()
    parts = ppo_loss(
        current, old, current.detach() + math.log(2.0), gain, torch.ones(5).bool(), 10.0, 0.2, 0.1
    )
    # min(rho A, clip A): 1.2, 0.5, -1.5, -0.8, 2.2; sum 1.6. k3 at lR - lS = log 2: 2 - 1 - log 2
    kl = 5 * (1 - math.log(2.0)) / 10
    assert parts.policy_loss == pytest.approx(-0.16, abs=1e-6)
    assert parts.kl_nats == pytest.approx(kl, abs=1e-6)
    assert parts.loss.item() == pytest.approx(-0.16 + 0.1 * kl, abs=1e-6)
    assert parts.clipped == 2
    assert parts.ratio_sum == pytest.approx(5.1, abs=1e-5)
    assert parts.ratio_gap == pytest.approx(0.5, abs=1e-6)
    assert (parts.tokens, parts.dropped) == (5, 0)
    parts.loss.backward()
    # d/dlS = -rho A / N unless clipped; the KL adds beta (1 - exp(lR - lS)) / N = -0.1 / 10
    surrogate = torch.tensor([0.0, -0.5, 1.5, 0.0, -2.2]) / 10
    torch.testing.assert_close(current.grad, surrogate - 0.01, atol=1e-6, rtol=0)


@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(0.0, 1.0))
@settings(deadline=None)
def test_gradient_is_that_of_the_naive_formula(seed: int, count: int, beta: float) -> None:
    current, old, reference, gain = tokens(seed, count)
    current.requires_grad_()
    mask = torch.arange(count) % 3 != 1
    total = int(mask.sum())
    parts = ppo_loss(current, old, reference, gain, mask, total, 0.2, beta)
    (found,) = torch.autograd.grad(parts.loss, current)
    loss = torch.zeros((), dtype=torch.float64)
    for index in range(count):
        if mask[index]:
            rho = torch.exp(current[index] - old[index])
            surrogate = torch.min(rho * gain[index], torch.clip(rho, 0.8, 1.2) * gain[index])
            gap = reference[index] - current[index]
            k3 = (gap.exp() - 1 - gap).clamp(-KL_BOUND_NATS, KL_BOUND_NATS)
            loss = loss + (-surrogate + beta * k3) / total
    (wanted,) = torch.autograd.grad(loss, current)
    torch.testing.assert_close(parts.loss, loss, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=6))
@settings(deadline=None)
def test_any_split_adds_up(seed: int, sizes: list[int]) -> None:
    count = sum(sizes) + 1
    current, old, reference, gain = tokens(seed, count)
    mask = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.7
    total = max(int(mask.sum()), 1)
    current.requires_grad_()
    whole = ppo_loss(current, old, reference, gain, mask, total, 0.2, 0.01)
    (wanted,) = torch.autograd.grad(whole.loss, current, retain_graph=True)
    parts = [
        ppo_loss(*pieces, total, 0.2, 0.01)
        for pieces in zip(*(x.split([*sizes, 1]) for x in (current, old, reference, gain, mask)), strict=True)
    ]
    (found,) = torch.autograd.grad(sum((part.loss for part in parts), torch.zeros(())), current)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert sum(part.policy_loss for part in parts) == pytest.approx(whole.policy_loss, abs=1e-12)
    assert sum(part.tokens for part in parts) == whole.tokens


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_token_is_dropped_and_counted(which: int, value: float) -> None:
    values = list(tokens(0, 6))
    clean = torch.tensor([True, True, False, True, True, False])
    values[which][2] = value
    values[which][5] = value
    values[0].requires_grad_()
    mask = torch.tensor([True, True, True, True, True, False])
    parts = ppo_loss(*values, mask, 4, 0.2, 0.01)
    assert (parts.tokens, parts.dropped) == (4, 1)
    (found,) = torch.autograd.grad(parts.loss, values[0])
    assert torch.isfinite(found).all()
    assert (found[~clean] == 0).all()
    assert (found[clean] != 0).any()


def test_empty_mask_has_a_zero_loss_with_a_graph() -> None:
    current, old, reference, gain = tokens(1, 3)
    current.requires_grad_()
    parts = ppo_loss(current, old, reference, gain, torch.zeros(3).bool(), 7, 0.2, 0.01)
    assert parts.loss.item() == 0.0
    (found,) = torch.autograd.grad(parts.loss, current)
    assert (found == 0).all()
    assert (parts.tokens, parts.dropped, parts.ratio_gap) == (0, 0, 0.0)


def test_extreme_log_ratios_stay_finite() -> None:
    current = torch.tensor([-200.0, 0.0], requires_grad=True)
    old, gain = torch.tensor([0.0, -200.0]), torch.tensor([-1.0, -1.0])
    parts = ppo_loss(current, old, old, gain, torch.ones(2).bool(), 2, 0.2, 1.0)
    parts.loss.backward()
    assert math.isfinite(parts.loss.item())
    assert current.grad is not None
    assert torch.isfinite(current.grad).all()
    assert low_variance_kl(torch.tensor([-200.0, 0.0]), old).tolist() == [10.0, 10.0]


@given(st.integers(0, 1000))
@settings(deadline=None)
def test_k3_is_unbiased_and_not_negative(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 0.4 * torch.randn(2, 6, generator=generator, dtype=torch.float64)
    current, reference = torch.log_softmax(logits, -1)
    estimate = low_variance_kl(current, reference)
    assert (estimate >= 0).all()
    exact = (current.exp() * (current - reference)).sum()
    torch.testing.assert_close((current.exp() * estimate).sum(), exact, atol=1e-9, rtol=0)
