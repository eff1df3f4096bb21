"""Divergences to target distributions: by hand, against autograd, by expectation, in chunks and learner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pivotopd.errors import ArtifactError
from pivotopd.learner import Learner, TrainingRow
from pivotopd.methods.base import FORWARD, REVERSE, Row, Target
from pivotopd.methods.registry import make_method
from pivotopd.methods.sections import PivotOpdMethod
from pivotopd.models.base import TokenDistributions
from pivotopd.models.batching import TokenBatch, micro_batches, pack_rows
from pivotopd.models.checkpoint import Policy
from pivotopd.objective import ppo_loss
from pivotopd.target_loss import batch_targets, divergence
from tests.learner_cases import Probe, make_rows, off_policy, policy, section
from tests.methods.cases import nats, row

P, Q = (0.5, 0.25, 0.25), (0.25, 0.25, 0.5)
LOG2 = math.log(2)


def logs(values: tuple[float, ...]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64).log()


def apart(mix: float, ids: tuple[int, ...] = (0, 1, 2)) -> float:
    keep = list(ids)
    return divergence(logs(P)[:, keep], logs(Q)[:, keep], mix).item()


def test_three_tokens_by_hand() -> None:
    # log(p/q) = log 2, 0, -log 2
    assert apart(REVERSE) == pytest.approx((0.5 - 0.25) * LOG2)
    assert apart(FORWARD) == pytest.approx((0.5 - 0.25) * LOG2)
    # m = (3/8, 1/4, 3/8): KL(q||m) = 1/4 log(2/3) + 1/2 log(4/3), and KL(p||m) is the same
    assert apart(0.5) == pytest.approx(0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 3))
    # m = (1/4 p + 3/4 q) = (5/16, 1/4, 7/16)
    to_q = 0.25 * math.log(4 / 5) + 0.5 * math.log(8 / 7)
    to_p = 0.5 * math.log(8 / 5) + 0.25 * math.log(4 / 7)
    assert apart(0.75) == pytest.approx(0.75 * to_q + 0.25 * to_p)


def test_two_likeliest_of_three_are_renormalised() -> None:
    # the target's likeliest two are ids 2 and 0 (q = 2/3, 1/3); the student there is 1/3, 2/3
    assert apart(FORWARD, (2, 0)) == pytest.approx(LOG2 / 3)
    assert apart(REVERSE, (2, 0)) == pytest.approx(LOG2 / 3)
    # ids 1 and 2: q = 1/3, 2/3 and p = 1/2, 1/2
    assert apart(FORWARD, (2, 1)) == pytest.approx(2 / 3 * math.log(4 / 3) + math.log(2 / 3) / 3)
    assert apart(REVERSE, (2, 1)) == pytest.approx(0.5 * math.log(3 / 4) + 0.5 * math.log(3 / 2))


logits = st.lists(st.floats(-6, 6), min_size=5, max_size=5)


def gradient(student: Tensor, target: Tensor, mix: float) -> Tensor:
    """Gradient on the student's logits."""
    student = student.clone().requires_grad_()
    (found,) = torch.autograd.grad(divergence(student.log_softmax(-1), target, mix).sum(), student)
    return found


@given(logits, logits)
@settings(deadline=None)
def test_gradients_are_those_of_the_exact_divergences(first: list[float], second: list[float]) -> None:
    student = torch.tensor([first], dtype=torch.float64)
    target = torch.tensor([second], dtype=torch.float64).log_softmax(-1)
    p, q = student.softmax(-1), target.exp()
    gap = p.log() - target
    reverse = p * (gap - (p * gap).sum())  # d KL(p || q) / du
    torch.testing.assert_close(gradient(student, target, REVERSE), reverse, atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(gradient(student, target, FORWARD), p - q, atol=1e-10, rtol=1e-9)
    inside = divergence(student.log_softmax(-1), target, 0.5).item()
    assert -1e-12 <= inside <= LOG2
    torch.testing.assert_close(gradient(student, student.log_softmax(-1), 0.5), torch.zeros_like(p))


@given(logits, logits, st.permutations(range(5)), st.sampled_from([FORWARD, 0.3, REVERSE]))
@settings(deadline=None)
def test_the_order_of_all_ids_does_not_matter(
    first: list[float], second: list[float], order: list[int], mix: float
) -> None:
    """So the likeliest V of V tokens are the whole vocabulary."""
    student = torch.tensor([first], dtype=torch.float64).log_softmax(-1)
    target = torch.tensor([second], dtype=torch.float64).log_softmax(-1)
    whole, other = divergence(student, target, mix), divergence(student[:, order], target[:, order], mix)
    torch.testing.assert_close(other, whole, atol=1e-12, rtol=1e-12)


# ---------------------------------------------------------------------- against the sampled estimator


def distributions(values: npt.ArrayLike) -> TokenDistributions:
    """Distributions over all V tokens, in the order of their ids."""
    found = np.asarray(values, np.float32)
    return TokenDistributions(np.tile(np.arange(found.shape[1], dtype=np.int32), (len(found), 1)), found)


def target_of(method_section: PivotOpdMethod, seen: Row) -> Target:
    (target,) = make_method(method_section, 1).advantages([seen], 0)[0].targets
    return target


WEIGHTS = {"prevention_weight": 0.7, "recovery_weight": 0.4, "lesson_weight": 0.0}


@given(logits, logits)
@settings(deadline=None)
def test_prevention_is_the_expectation_of_the_sampled_estimator(
    first: list[float], second: list[float]
) -> None:
    """Over all tokens y: sum_y p(y) grad of PPO's loss on y = gradient of the full estimator's loss."""
    student = torch.tensor(first, dtype=torch.float64)
    target = torch.tensor(second, dtype=torch.float64).log_softmax(-1)
    old = student.log_softmax(-1)
    rows = [row("a", 0, [old[y].item()], hinted_nats=nats([target[y].item()])) for y in range(len(student))]
    sampled = make_method(PivotOpdMethod(**WEIGHTS), 1).advantages(rows, 0)
    moving = student.clone().requires_grad_()
    expected = torch.zeros_like(student)
    for y, one in enumerate(sampled):
        current = moving.log_softmax(-1)[y : y + 1]
        gain = torch.tensor([float(one.total[0])], dtype=torch.float64)
        parts = ppo_loss(current, old[y : y + 1], old[y : y + 1], gain, torch.ones(1).bool(), 1.0, 0.2, 0.0)
        expected += old[y].exp() * torch.autograd.grad(parts.loss, moving)[0]
    full = PivotOpdMethod(estimator="full", **WEIGHTS)
    seen = row(
        "a", 0, [old[0].item()], hinted_nats=nats([target[0].item()]),
        hinted_distributions=distributions(target[None]),
    )  # fmt: skip
    found = target_of(full, seen)
    assert found.mix == REVERSE
    exact = found.weight * gradient(student[None], target[None], found.mix)[0]
    torch.testing.assert_close(exact, expected, atol=1e-5, rtol=1e-5)


@given(logits, logits)
@settings(deadline=None)
def test_recovery_is_the_expectation_of_the_likelihood(first: list[float], second: list[float]) -> None:
    """Over what the self-teacher writes: sum_y q(y) grad of -log p(y) = gradient of KL(q || p)."""
    student = torch.tensor(first, dtype=torch.float64)
    target = torch.tensor(second, dtype=torch.float64).log_softmax(-1)
    likelihood = make_method(PivotOpdMethod(recovery_objective="nll", **WEIGHTS), 1).auxiliary
    assert likelihood is not None
    moving = student.clone().requires_grad_()
    current = moving.log_softmax(-1)
    (expected,) = torch.autograd.grad((target.exp() * likelihood(current, current, target)).sum(), moving)
    seen = row(
        "a", 0, [-1.0], hinted_nats=nats([-1.0]), source="recovery",
        hinted_distributions=distributions(target[None]),
    )  # fmt: skip
    found = target_of(PivotOpdMethod(estimator="full", **WEIGHTS), seen)
    assert found.mix == FORWARD
    exact = found.weight * gradient(student[None], target[None], found.mix)[0]
    torch.testing.assert_close(exact, expected, atol=1e-10, rtol=1e-9)


# ---------------------------------------------------------------------- in chunks


def with_targets(made: Policy, width: int | None) -> list[TrainingRow]:
    """Off-policy rows with no, one or two targets each, of two mixes; one score is not a number."""
    vocabulary, rng = made.model.config.vocab_size, np.random.default_rng(3)
    rows = []
    for index, one in enumerate(off_policy(make_rows(made.model))):
        found = []
        for mix in ((), (REVERSE,), (REVERSE, REVERSE), (FORWARD,), (0.5, FORWARD))[index % 5]:
            scores = torch.from_numpy(3 * rng.normal(size=(len(one.response_ids), vocabulary)))
            top = scores.log_softmax(-1).topk(width or vocabulary)
            values = top.values.float().numpy()
            if index == 6:
                values[0, 0] = np.nan
            found.append(Target(TokenDistributions(top.indices.int().numpy(), values), 0.1 + index / 10, mix))
        rows.append(dataclasses.replace(one, targets=tuple(found)))
    return rows


def naive_loss(model: torch.nn.Module, one: TrainingRow) -> list[Tensor]:
    """PPO, KL and divergences of each trained token of a row, written out."""
    ids = torch.tensor([[*one.prompt_ids, *one.response_ids]])
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
    found = []
    for place, token in enumerate(one.response_ids):
        if not one.keep[place]:
            continue
        whole = logprobs[len(one.prompt_ids) + place - 1]
        current, gain = whole[token], float(one.advantage[place])
        ratio = torch.exp(current - float(one.old_nats[place]))
        gap = float(one.reference_nats[place]) - current
        loss = -torch.minimum(ratio * gain, torch.clip(ratio, 0.8, 1.2) * gain)
        loss = loss + 0.01 * (torch.exp(gap) - 1 - gap)
        for target in one.targets:
            kept = torch.from_numpy(target.distributions.ids[place]).long()
            q = torch.from_numpy(target.distributions.nats[place]).softmax(-1)
            p = whole[kept].exp() / whole[kept].exp().sum()
            m = (1 - target.mix) * p + target.mix * q
            parts: dict[float, Callable[[], Tensor]] = {
                FORWARD: lambda p=p, q=q: (q * (q / p).log()).sum(),
                REVERSE: lambda p=p, q=q: (p * (p / q).log()).sum(),
                0.5: lambda p=p, q=q, m=m: 0.5 * (q * (q / m).log() + p * (p / m).log()).sum(),
            }
            loss = loss + target.weight * parts[target.mix]()
        found.append(loss)
    return found


@pytest.mark.parametrize(("budget", "chunk"), [(10_000, 1024), (10_000, 7), (25, 1024), (25, 3)])
@pytest.mark.parametrize("width", [4, None], ids=["top_k", "full"])
def test_the_learner_s_gradient_is_the_naive_one_however_it_is_cut(
    width: int | None, budget: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = policy()
    rows = with_targets(made, width)
    assert not rows[6].keep[0], "a target that is not a number leaves the mask"
    total = sum(int(one.keep.sum()) for one in rows)
    model = policy().model
    naive = torch.stack([loss for one in rows for loss in naive_loss(model, one)]).sum() / total
    naive.backward()
    wanted = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    with Probe(made, section(micro_batch_tokens=budget)) as learner:
        monkeypatch.setattr(learner._engine.module, "_chunk_tokens", chunk)
        (report,) = learner.update(rows, 0)
        found = learner.gradients[0]
    assert (found - wanted).norm() <= 2e-6 * wanted.norm()
    assert report.loss == pytest.approx(naive.item(), rel=1e-4)
    assert report.loss == pytest.approx(report.policy_loss + 0.01 * report.kl_nats + report.auxiliary_loss)
    assert report.auxiliary_loss > 0.0
    assert report.tokens == total


def test_a_chunk_sees_its_own_targets_only() -> None:
    made = policy()
    rows = with_targets(made, 4)
    (batch,) = micro_batches(rows, 100_000)
    found = batch_targets(batch, [one.targets for one in rows])
    count, vocabulary = len(batch.targets), made.model.config.vocab_size
    logprobs = torch.randn(count, vocabulary).log_softmax(-1)
    whole = found.loss(logprobs, slice(0, count)).nan_to_num(nan=-1.0)
    for size in (1, 5, 64):
        parts = [
            found.loss(logprobs[start : start + size], slice(start, min(start + size, count)))
            for start in range(0, count, size)
        ]
        torch.testing.assert_close(torch.cat(parts).nan_to_num(nan=-1.0), whole)
    for place, one in zip(batch.rows, batch.split(whole), strict=True):
        assert bool((one != 0).any()) == bool(rows[place].targets)


def test_targets_of_other_tokens_are_refused() -> None:
    made = policy()
    rows = with_targets(made, 4)
    batch: TokenBatch = pack_rows(rows, [1])
    with pytest.raises(ArtifactError, match="distributions at"):
        batch_targets(batch, [(), rows[2].targets])


@pytest.mark.parametrize("mix", [FORWARD, 0.5, REVERSE])
def test_training_goes_to_the_target(mix: float) -> None:
    """Some steps of the loss alone bring the student nearer to what it is drawn to."""
    made = policy()
    vocabulary = made.model.config.vocab_size
    scores = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    rows = [
        dataclasses.replace(
            one,
            advantage=np.zeros_like(one.advantage),
            targets=(Target(distributions(scores.repeat(len(one.response_ids), 1)), 1.0, mix),),
        )
        for one in make_rows(made.model)
    ]
    with Learner(made, section(kl_coefficient=0.0, learning_rate=3e-3)) as learner:
        losses = [learner.update(rows, step)[0].auxiliary_loss for step in range(12)]
    assert losses[-1] < 0.7 * losses[0]


@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5))
@settings(deadline=None)
def test_any_split_of_the_objective_adds_up(seed: int, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes) + 1
    current = -torch.rand(count, generator=generator, dtype=torch.float64)
    beside = torch.rand(count, generator=generator, dtype=torch.float64).requires_grad_()
    mask = torch.rand(count, generator=generator) < 0.7
    whole = ppo_loss(current, current, current, current, mask, 9, 0.2, 0.0, target_loss=beside)
    parts = [
        ppo_loss(one, one, one, one, kept, 9, 0.2, 0.0, target_loss=extra)
        for one, kept, extra in zip(*(x.split([*sizes, 1]) for x in (current, mask, beside)), strict=True)
    ]
    assert sum(part.auxiliary_loss for part in parts) == pytest.approx(whole.auxiliary_loss)
    (found,) = torch.autograd.grad(whole.loss, beside)
    torch.testing.assert_close(found, mask.double() / 9)
