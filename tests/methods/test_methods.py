"""GRPO and PivotOPD against hand-computed numbers and the identities of the paper's appendix C."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import ArtifactError
from pivotopd.methods.base import Needs, Row, Source
from pivotopd.methods.registry import make_method
from pivotopd.methods.sections import GrpoMethod, PivotOpdMethod

Array = npt.NDArray[np.float64]


def row(
    episode: str,
    value: float,
    plain: list[float],
    hinted: list[float] | None = None,
    lesson: list[float] | None = None,
    source: Source = "rollout",
) -> Row:
    def nats(values: list[float] | None) -> npt.NDArray[np.float32] | None:
        return None if values is None else np.array(values, np.float32)

    first = nats(plain)
    assert first is not None
    mask = np.ones(len(plain), np.bool_)
    return Row(episode, "g", source, value, 0.0, first, nats(hinted), nats(lesson), mask)


def example() -> list[Row]:
    """Two episodes of three turns: a wins; b fails, is pivotal at its turn 1, and has a recovery after it."""
    return [
        row("a", 10.0, [-1.0, -2.0], lesson=[-0.5, -2.5]),
        row("a", 10.0, [-1.0], lesson=[-1.0]),
        row("a", 10.0, [-3.0]),
        row("b", 0.0, [-1.0], lesson=[-2.0]),
        row("b", 0.0, [-1.0, -1.0], hinted=[-7.0, -0.5], lesson=[-1.0, -3.0]),
        row("b", 0.0, [-2.0], lesson=[-1.0]),
        row("b", 0.0, [-9.0, -1.0, -0.5], hinted=[-1.0, -0.5, -8.0], source="recovery"),
    ]


def test_pivotopd_three_turn_two_episode_example() -> None:
    section = PivotOpdMethod(prevention_weight=0.1, recovery_weight=0.5, lesson_weight=0.01)
    result = make_method(section, 2).advantages(example(), 0)
    expected = [
        [5 + 0.005, 5 - 0.005],
        [5.0],
        [5.0],
        [-5 - 0.01],
        [-5 - 0.6 + 0.0, -5 + 0.05 - 0.02],
        [-5 + 0.01],
        [0.5 * 5, 0.5 * 0.5, 0.5 * -5],  # 8 and -7.5 clipped to 5 before the weight
    ]
    for found, wanted in zip(result, expected, strict=True):
        assert found.total.dtype == np.float32
        np.testing.assert_allclose(found.total, wanted, atol=1e-6)
    np.testing.assert_allclose(result[4].prevention, [-0.6, 0.05], atol=1e-7)
    np.testing.assert_allclose(result[4].lesson, [0.0, -0.02], atol=1e-7)
    assert result[3].prevention.size == 0
    assert result[2].lesson.size == 0
    assert [item.outcome for item in result] == [5.0, 5.0, 5.0, -5.0, -5.0, -5.0, 0.0]


def test_grpo_ignores_every_hint() -> None:
    result = make_method(GrpoMethod(), 2).advantages(example()[:6], 0)
    assert [item.total.tolist() for item in result] == [
        [5.0, 5.0],
        [5.0],
        [5.0],
        [-5.0],
        [-5.0, -5.0],
        [-5.0],
    ]


def test_needs_follow_the_weights() -> None:
    assert make_method(GrpoMethod(), 2).needs == Needs()
    assert make_method(PivotOpdMethod(), 2).needs == Needs(True, 2, True, True)
    section = PivotOpdMethod(prevention_weight=0.0, lesson_weight=0.0)
    assert make_method(section, 0).needs == Needs(True, 0, False, False)
    result = make_method(section, 0).advantages(example()[:6], 0)
    assert all((item.total == item.outcome).all() for item in result)


def test_equal_returns_leave_only_recovery_t4() -> None:
    section = PivotOpdMethod(prevention_weight=0.0, lesson_weight=0.0)
    rows = [row("a", 0.0, [-1.0]), row("b", 0.0, [-1.0]), row("b", 0.0, [-4.0], [-1.0], source="recovery")]
    result = make_method(section, 1).advantages(rows, 0)
    assert [item.total.tolist() for item in result] == [[0.0], [0.0], [3.0]]


def test_rows_scored_wrongly_are_refused() -> None:
    method = make_method(PivotOpdMethod(), 1)
    with pytest.raises(ArtifactError, match="no log-probabilities under its hint"):
        method.advantages([row("a", 0.0, [-1.0], source="recovery")], 0)
    with pytest.raises(ArtifactError, match="1 hinted log-probabilities stand beside 2"):
        method.advantages([row("a", 0.0, [-1.0, -1.0], [-1.0])], 0)


logits = st.lists(st.floats(-6, 6), min_size=3, max_size=3)


def softmax(values: list[float]) -> Array:
    shifted = np.exp(np.array(values) - max(values))
    return np.asarray(shifted / shifted.sum(), np.float64)


def divergence(p: Array, q: Array) -> float:
    return float((p * np.log(p / q)).sum())


def weights(p: Array, q: Array, source: Source) -> Array:
    """The method's advantage of each action of one categorical decision: p student, q self-teacher."""
    section = PivotOpdMethod(prevention_weight=1.0, recovery_weight=1.0, lesson_weight=0.0)
    rows = [
        row("a", 0.0, [float(np.log(x))], [float(np.log(y))], source=source)
        for x, y in zip(p, q, strict=True)
    ]
    return np.array([float(item.total[0]) for item in make_method(section, 1).advantages(rows, 0)])


def expected_update(p: Array, sampler: Array, gain: Array) -> Array:
    """E_{y ~ sampler}[gain(y) * d log p(y) / du]."""
    return np.asarray(sampler * gain - p * (sampler * gain).sum())


@given(logits, logits)
def test_prevention_is_the_reverse_kl_gradient_t1(first: list[float], second: list[float]) -> None:
    p, q = softmax(first), softmax(second)
    update = expected_update(p, p, weights(p, q, "rollout"))
    np.testing.assert_allclose(update, p * (np.log(q / p) + divergence(p, q)), atol=1e-4)


@given(logits, logits)
def test_recovery_grows_a_rare_gold_action_t2(first: list[float], second: list[float]) -> None:
    p, q, delta = softmax(first), softmax(second), 5.0
    phi = weights(p, q, "recovery")
    update = expected_update(p, q, phi)
    np.testing.assert_allclose(phi, np.clip(np.log(q / p), -delta, delta), atol=1e-4)
    for action in range(3):
        if q[action] >= np.exp(delta) * p[action]:
            assert update[action] >= delta * (q[action] - p[action]) - 1e-4


@given(logits, logits)
def test_forward_kl_bounds_a_rare_action_t3(first: list[float], second: list[float]) -> None:
    p, q = softmax(first), softmax(second)
    assert (divergence(q, p) >= q * np.log(1 / p) - np.log(2) - 1e-9).all()


@given(logits, logits)
def test_signs_of_the_mean_advantage_t7(first: list[float], second: list[float]) -> None:
    p, q = softmax(first), softmax(second)
    gain = weights(p, q, "rollout")
    assert float((p * gain).sum()) == pytest.approx(-divergence(p, q), abs=1e-4)
    assert float((q * gain).sum()) == pytest.approx(divergence(q, p), abs=1e-4)
