from __future__ import annotations

import math

import numpy as np
import torch

from pivotopd.models.sampling import draw, uniforms_of


def test_inverse_distribution_by_hand() -> None:
    # Probabilities 0.5, 0, 0.3, 0.2: cumulative 0.5, 0.5, 0.8, 1.
    logits = torch.tensor([[0.5, 0.0, 0.3, 0.2]], dtype=torch.float64).log().expand(6, 4)
    marks = torch.tensor([0.0, 0.49, 0.51, 0.79, 0.81, 1 - 2**-53], dtype=torch.float64)
    tokens, logprobs = draw(logits, 1.0, marks)
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    expected = [math.log(p) for p in (0.5, 0.5, 0.3, 0.3, 0.2, 0.2)]
    np.testing.assert_allclose(logprobs.numpy(), expected, rtol=1e-6)


def test_temperature_sharpens_and_enters_the_logprob() -> None:
    # At temperature 1/2 the weights 2 and 1 become 4 and 1.
    logits = torch.tensor([[2.0, 1.0]]).log()
    tokens, logprobs = draw(logits, 0.5, torch.tensor([0.79], dtype=torch.float64))
    assert tokens.tolist() == [0]
    np.testing.assert_allclose(logprobs.numpy(), [math.log(0.8)], rtol=1e-6)


def test_temperature_zero_takes_the_largest_and_scores_at_one() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    tokens, logprobs = draw(logits, 0.0, None)
    assert tokens.tolist() == [1]
    np.testing.assert_allclose(logprobs.numpy(), torch.log_softmax(logits, -1)[0, 1].item(), rtol=1e-6)


def test_frequencies_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.05, 0.6, 0.35])
    count = 20_000
    uniforms = uniforms_of([7], count)[0]
    tokens, _ = draw(probabilities.log().expand(count, 3), 1.0, uniforms)
    shares = torch.bincount(tokens, minlength=3) / count
    # Five standard errors of a share of 20,000 draws are below 0.018.
    torch.testing.assert_close(shares, probabilities, atol=0.018, rtol=0)


def test_uniforms_belong_to_their_seed() -> None:
    together = uniforms_of([3, 4, 3], 5)
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])
    # A longer limit only adds draws.
    assert torch.equal(uniforms_of([3], 9)[0, :5], together[0])


def test_bad_logits_are_not_finite() -> None:
    rows = torch.tensor([[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf], [0.0, -math.inf]])
    _, logprobs = draw(rows, 1.0, torch.full((4,), 0.4, dtype=torch.float64))
    assert torch.isfinite(logprobs).tolist() == [False, False, False, True]
