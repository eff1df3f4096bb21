"""The identities of the paper's appendix C on a real model: one decision over its whole vocabulary.

On random categoricals they stand in ``tests/methods/test_methods.py``, T4 to T6 there only: they are about
returns and draws, and no model changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from pivotopd.methods.base import FORWARD, REVERSE, Source
from pivotopd.methods.registry import make_method
from pivotopd.methods.sections import PivotOpdMethod
from pivotopd.models.base import ScoreRequest
from pivotopd.models.batching import pack_rows
from pivotopd.models.logprobs import response_values
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.target_loss import divergence
from tests import play
from tests.methods.cases import nats, row
from tests.test_scoring import engine

Array = npt.NDArray[np.float64]
HINTS = ("go to fridge 1", "go to shelf 1", "look")


@dataclass(frozen=True)
class Decision:
    """The first token of a reply: its distribution under the plain prompt (p) and under a hint (q)."""

    policy: TransformersEngine
    plain: list[int]
    p: Array
    q: Array

    def gains(self, source: Source, clip: float = 5.0) -> Array:
        """The method's advantage of every token, weights 1."""
        section = PivotOpdMethod(
            prevention_weight=1.0, recovery_weight=1.0, lesson_weight=0.0, recovery_clip_nats=clip
        )
        rows = [
            row("a", 0, [float(np.log(x))], hinted_nats=nats([float(np.log(y))]), source=source)
            for x, y in zip(self.p, self.q, strict=True)
        ]
        return np.array([float(one.total[0]) for one in make_method(section, 1).advantages(rows, 0)])

    def gradient(self, coefficients: Tensor | None = None, mix: float = REVERSE) -> Tensor:
        """Gradient on the model's weights: of sum_v c_v log p(v), or of the divergence to q."""
        model = self.policy.loaded.model
        target = torch.from_numpy(np.log(self.q)).float()[None]

        def value(logprobs: Tensor, where: slice) -> tuple[Tensor, ...]:
            if coefficients is None:
                return (divergence(logprobs, target, mix),)
            return ((coefficients * logprobs).sum(dim=-1),)

        (found,) = response_values(model, pack_rows([ScoreRequest(self.plain, [0])], [0]), value)
        parts = torch.autograd.grad(found.sum(), [one for one in model.parameters() if one.requires_grad])
        return torch.cat([part.flatten() for part in parts]).double()


@pytest.fixture(scope="module", params=[(seed, hint) for seed in (0, 1) for hint in HINTS], ids=str)
def decision(request: pytest.FixtureRequest) -> Decision:
    seed, hint = request.param
    policy, prompter = engine(seed), play.prompter()
    task = play.environment().tasks("train")[0]
    seen = play.environment().open().reset(task, 0)
    plain = prompter.plain(play.environment().instruction(task), [], 0, seen.observation, seen.admissible)
    assert plain is not None
    hinted = prompter.hinted(plain, hint=hint)
    assert hinted is not None
    found = []
    for prompt in (plain.ids, hinted):
        ((_, top),) = policy.score_distributions([ScoreRequest(prompt, [0])], None)
        values = np.zeros(top.ids.shape[1])
        values[top.ids[0]] = top.nats[0]
        found.append(np.exp(values) / np.exp(values).sum())
    p, q = found
    assert kl(p, q) > 0.01, "the hint moves the model"
    return Decision(policy, plain.ids, p, q)


def kl(p: Array, q: Array) -> float:
    return float((p * np.log(p / q)).sum())


def expected_update(p: Array, sampler: Array, gain: Array) -> Array:
    """E_{y ~ sampler}[gain(y) * d log p(y) / du]."""
    return np.asarray(sampler * gain - p * (sampler * gain).sum())


def close(found: Tensor, wanted: Tensor) -> bool:
    return float((found - wanted).norm()) <= 1e-3 * float(wanted.norm())


def test_prevention_follows_the_reverse_kl_t1(decision: Decision) -> None:
    p, q, gain = decision.p, decision.q, decision.gains("rollout")
    update = expected_update(p, p, gain)
    np.testing.assert_allclose(update, p * (np.log(q / p) + kl(p, q)), atol=1e-5)
    # on the weights: the expectation over all tokens of the sampled update is the descent of KL(p || q)
    sampled = decision.gradient(torch.from_numpy(p * gain).float())
    assert close(sampled, -decision.gradient(mix=REVERSE))
    rare = np.argsort(p)[: len(p) // 2]
    assert np.abs(update[rare]).max() < p[rare].max() * (np.abs(gain).max() + kl(p, q) + 1e-6)


@pytest.mark.parametrize("delta", [0.5, 2.0, 5.0])
def test_recovery_grows_what_the_self_teacher_prefers_t2(decision: Decision, delta: float) -> None:
    p, q = decision.p, decision.q
    gain = decision.gains("recovery", delta)
    phi = np.clip(np.log(q / p), -delta, delta)
    np.testing.assert_allclose(gain, phi, atol=1e-4)
    update = expected_update(p, q, gain)
    np.testing.assert_allclose(update, q * phi - p * (q * phi).sum(), atol=1e-5)
    preferred = q >= np.exp(delta) * p
    assert preferred.any() or delta > 0.5
    assert (update[preferred] >= delta * (q - p)[preferred] - 1e-6).all()
    assert (update[preferred] > 0).all()


def test_the_likelihood_of_recoveries_follows_the_forward_kl(decision: Decision) -> None:
    likelihood = decision.gradient(torch.from_numpy(decision.q).float())
    assert close(likelihood, -decision.gradient(mix=FORWARD))


def test_the_forward_kl_bounds_every_token_t3(decision: Decision) -> None:
    p, q = decision.p, decision.q
    assert (kl(q, p) >= q * np.log(1 / p) - np.log(2)).all()


def test_signs_of_the_mean_advantage_t7(decision: Decision) -> None:
    p, q, gain = decision.p, decision.q, decision.gains("rollout")
    assert float((p * gain).sum()) == pytest.approx(-kl(p, q), abs=1e-5)
    assert float((q * gain).sum()) == pytest.approx(kl(q, p), abs=1e-5)
    assert (p * gain).sum() < -1e-4
    assert (q * gain).sum() > 1e-4
