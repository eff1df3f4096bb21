"""GRPO and PivotOPD against hand-computed numbers and the identities of the paper's appendix C."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import ArtifactError
from pivotopd.methods.base import FORWARD, REVERSE, Needs, Row, Source
from pivotopd.methods.registry import make_method
from pivotopd.methods.sections import GrpoMethod, PivotOpdMethod
from pivotopd.models.base import TokenDistributions

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


def with_distributions(rows: list[Row]) -> list[Row]:
    """The same rows with distributions wherever they were scored under privileged text."""

    def of(nats: npt.NDArray[np.float32] | None) -> TokenDistributions | None:
        return None if nats is None else TokenDistributions(np.zeros((len(nats), 2), np.int32), nats[:, None])

    return [
        replace(one, hinted_distributions=of(one.hinted_nats), lesson_distributions=of(one.lesson_nats))
        for one in rows
    ]


@pytest.mark.parametrize("estimator", ["top_k", "full"])
def test_other_estimators_leave_the_outcome_and_draw_to_distributions(
    estimator: Literal["top_k", "full"],
) -> None:
    section = PivotOpdMethod(
        prevention_weight=0.1, recovery_weight=0.5, lesson_weight=0.01, estimator=estimator
    )
    rows = with_distributions(example())
    result = make_method(section, 2).advantages(rows, 0)
    for one, outcome in zip(result, (5.0, 5.0, 5.0, -5.0, -5.0, -5.0, 0.0), strict=True):
        assert set(one.total.tolist()) == {outcome}
        assert one.outcome == outcome
        assert one.auxiliary_nats is None
    found = [[(target.weight, target.mix) for target in one.targets] for one in result]
    lesson, gold = (0.01, REVERSE), (0.1, REVERSE)
    assert found == [[lesson], [lesson], [], [lesson], [gold, lesson], [lesson], [(0.5, FORWARD)]]
    assert result[4].targets[0].distributions is rows[4].hinted_distributions
    assert result[4].targets[1].distributions is rows[4].lesson_distributions
    assert all(one.targets == () for one in make_method(PivotOpdMethod(), 2).advantages(rows, 0))


def test_reverse_recoveries_are_drawn_by_the_reverse_divergence() -> None:
    section = PivotOpdMethod(recovery_kl="reverse", estimator="full", lesson_weight=0.0)
    (target,) = make_method(section, 2).advantages(with_distributions(example()), 0)[6].targets
    assert (target.weight, target.mix) == (1.0, REVERSE)


def test_rows_scored_without_distributions_are_refused() -> None:
    for rows in (example(), example()[-1:]):
        with pytest.raises(ArtifactError, match=r"_nats and no .*_distributions"):
            make_method(PivotOpdMethod(estimator="full"), 2).advantages(rows, 0)


def test_a_likelihood_has_no_other_estimator() -> None:
    with pytest.raises(ValueError, match="needs estimator=sampled"):
        PivotOpdMethod(recovery_objective="nll", estimator="full")


logits = st.lists(st.floats(-6, 6), min_size=3, max_size=3)


def softmax(values: list[float]) -> Array:
    shifted = np.exp(np.array(values) - max(values))
    return np.asarray(shifted / shifted.sum(), np.float64)


def divergence(p: Array, q: Array) -> float:
    return float((p * np.log(p / q)).sum())


def weights(p: Array, q: Array, source: Source, clip: float = 5.0) -> Array:
    """The method's advantage of each action of one categorical decision: p student, q self-teacher."""
    section = PivotOpdMethod(
        prevention_weight=1.0, recovery_weight=1.0, lesson_weight=0.0, recovery_clip_nats=clip
    )
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


@given(logits, logits)
def test_unclipped_recovery_vanishes_only_where_student_is_self_teacher(
    first: list[float], second: list[float]
) -> None:
    """Lemma 2: the update is zero in every component if and only if p = q."""
    p, q = softmax(first), softmax(second)
    np.testing.assert_allclose(expected_update(p, p, weights(p, p, "recovery", clip=1e6)), 0.0, atol=1e-6)
    if np.abs(p - q).max() > 0.05:
        assert np.abs(expected_update(p, q, weights(p, q, "recovery", clip=1e6))).max() > 1e-5


def test_unclipped_recovery_grows_without_bound_where_the_gold_action_dies_out() -> None:
    q = np.array([0.9, 0.05, 0.05])
    sizes = []
    for rare in (1e-2, 1e-4, 1e-8, 1e-16):
        p = np.array([rare, (1 - rare) / 2, (1 - rare) / 2])
        sizes.append(expected_update(p, q, weights(p, q, "recovery", clip=1e6))[0])
    assert all(later > earlier + 1 for earlier, later in pairwise(sizes))


@given(st.floats(0.0, 1.0), st.integers(1, 6))
def test_a_group_learns_of_a_rare_action_at_most_as_often_as_it_draws_it_t5(p: float, draws: int) -> None:
    """Over all outcomes of G draws: P(GRPO has a signal) <= P(the action is drawn) = 1 - (1-p)^G <= G p."""
    drawn = signal = 0.0
    for outcome in product((0.0, 1.0), repeat=draws):
        chance = float(np.prod([p if won else 1 - p for won in outcome]))
        rows = [row(str(index), 10 * won, [-1.0]) for index, won in enumerate(outcome)]
        gains = make_method(GrpoMethod(), 0).advantages(rows, 0)
        drawn += chance * any(outcome)
        signal += chance * any(one.total.any() for one in gains)
    assert drawn == pytest.approx(1 - (1 - p) ** draws, abs=1e-12)
    assert signal == pytest.approx(max(0.0, drawn - p**draws), abs=1e-12)
    assert signal <= drawn + 1e-12 <= draws * p + 2e-12


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.integers(0, 8))
def test_guided_turns_on_a_chain_t6(masses: list[float], guided: int) -> None:
    """A chain of d required actions, each of mass <= e, K of them guided: success <= e^(d-K)."""
    d, e, k = len(masses), max(masses), min(guided, len(masses))
    state = np.eye(d + 2)[0]  # required actions done so far; the last state is failure
    for step, mass in enumerate(masses):
        chance = 1.0 if step < k else mass
        move = np.eye(d + 2)
        move[step] = 0.0
        move[step, step + 1], move[step, d + 1] = chance, 1 - chance
        state = state @ move
    assert state.sum() == pytest.approx(1.0)
    assert state[d] <= e ** (d - k) + 1e-12


def test_nll_recovery_leaves_recovery_rows_to_the_likelihood() -> None:
    section = PivotOpdMethod(recovery_objective="nll", recovery_weight=0.25)
    method = make_method(section, 2)
    result = method.advantages(example(), 0)
    usual = make_method(PivotOpdMethod(recovery_weight=0.25), 2).advantages(example(), 0)
    for one, other in zip(result[:6], usual[:6], strict=True):
        assert one.total.tolist() == other.total.tolist()
        assert one.auxiliary_nats is None
    assert result[6].total.tolist() == [0.0, 0.0, 0.0]
    assert result[6].auxiliary_nats is not None
    assert method.auxiliary is not None
    assert make_method(PivotOpdMethod(), 2).auxiliary is None
    current = torch.tensor([-2.0, -0.5], requires_grad=True)
    loss = method.auxiliary(current, torch.zeros(2), torch.zeros(2))
    assert loss.tolist() == [0.5, 0.125]
    loss.sum().backward()
    assert current.grad is not None
    assert current.grad.tolist() == [-0.25, -0.25]


def test_a_likelihood_of_the_student_s_own_words_is_refused() -> None:
    with pytest.raises(ValueError, match="needs recovery_kl=forward"):
        PivotOpdMethod(recovery_objective="nll", recovery_kl="reverse")


def test_a_recovery_weight_of_zero_asks_for_no_recovery() -> None:
    assert make_method(PivotOpdMethod(recovery_weight=0.0), 2).needs.recovery_depth == 0
    assert make_method(PivotOpdMethod(), 2).needs.recovery_depth == 2
