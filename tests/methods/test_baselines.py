"""Every baseline on the three-turn two-episode example, by hand, and what each must never do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.depth import Depth
from pivotopd.errors import ArtifactError, NumericsError
from pivotopd.methods import sections
from pivotopd.methods.base import Row, TokenAdvantage
from pivotopd.methods.registry import ENTRIES, make_method
from pivotopd.methods.sod import Sod
from pivotopd.methods.tcod import Tcod
from pivotopd.methods.turnopd import TurnOpd, next_cap, probed_depth
from pivotopd.models.base import TokenDistributions
from tests.methods.cases import DELTA, OUTCOME, example, nats, row


def run(section: sections.Settings, rows: Sequence[Row], iteration: int = 0) -> list[TokenAdvantage]:
    result = make_method(section, 0).advantages(rows, iteration)
    assert all(one.total.dtype == np.float32 for one in result)
    assert [one.total.shape for one in result] == [one.plain_nats.shape for one in rows]
    return result


def same(found: Sequence[TokenAdvantage], wanted: Sequence[Sequence[float]]) -> None:
    assert len(found) == len(wanted)
    for one, values in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.total, values, atol=2e-6)


def plus_outcome(weight: float) -> list[list[float]]:
    return [[a + weight * x for x in delta] for a, delta in zip(OUTCOME, DELTA, strict=True)]


SKILLED = (
    sections.OpsdMethod,
    sections.RlsdMethod,
    sections.SdarMethod,
    sections.AgentOpsdMethod,
    sections.OpidMethod,
    sections.SkillSdMethod,
)
BY_MODEL = (sections.OpdMethod, sections.TurnOpdMethod, sections.TcodMethod, sections.SodMethod)


@pytest.mark.parametrize("section", [one for one in (*SKILLED, *BY_MODEL) if one is not sections.OpidMethod])
def test_without_its_signal_a_method_refuses_instead_of_taking_zero(section: type[sections.Settings]) -> None:
    with pytest.raises(ArtifactError, match=r"6 of 6 rollout rows have no (skill|teacher)_nats"):
        run(section(), example())


@pytest.mark.parametrize("section", BY_MODEL)
def test_a_larger_model_scores_every_row(section: type[sections.Settings]) -> None:
    rows = example("teacher_nats")
    with pytest.raises(ArtifactError, match="1 of 6 rollout rows have no teacher_nats"):
        run(section(), [replace(rows[0], teacher_nats=None), *rows[1:]])


@pytest.mark.parametrize("section", [one for one in SKILLED if one is not sections.AgentOpsdMethod])
def test_a_row_whose_skill_did_not_fit_keeps_its_outcome(section: type[sections.Settings]) -> None:
    rows = example("skill_nats")
    result = run(section(), [*rows[:5], replace(rows[5], skill_nats=None)])
    assert result[5].total.tolist() == [0.0 if section is sections.OpsdMethod else -5.0]
    assert result[5].auxiliary_nats is None


def test_signals_of_other_tokens_are_refused() -> None:
    rows = example("skill_nats")
    rows[1] = replace(rows[1], skill_nats=nats([-1.0, -1.0]))
    with pytest.raises(ArtifactError, match="2 hinted log-probabilities stand beside 1"):
        run(sections.OpsdMethod(), rows)


# ---------------------------------------------------------------------- distillation without outcome


def test_opsd_and_opd_are_the_weighted_log_ratio() -> None:
    same(run(sections.OpsdMethod(), example("skill_nats")), DELTA)
    doubled = [[2 * x for x in one] for one in DELTA]
    same(run(sections.OpdMethod(coefficient=2.0), example("teacher_nats")), doubled)
    assert all(one.outcome == 0.0 for one in run(sections.OpsdMethod(), example("skill_nats")))


@pytest.mark.parametrize(("iteration", "turns"), [(0, 1), (5, 1), (6, 2), (11, 2), (12, 3), (400, 30)])
def test_tcod_trains_one_more_turn_every_eta_iterations(iteration: int, turns: int) -> None:
    assert Tcod(sections.TcodMethod()).turns_at(iteration) == turns
    result = run(sections.TcodMethod(), example("teacher_nats"), iteration)
    same(result, [d if i % 3 < turns else [0.0] * len(d) for i, d in enumerate(DELTA)])
    same(run(sections.TcodMethod(direction="b2f"), example("teacher_nats"), iteration), list(DELTA))


def test_turnopd_weighs_depths_between_tokens_and_turns() -> None:
    rows = example("teacher_nats")[:5]  # depths 0, 1, 2: episodes 2, 2, 1; tokens 3, 3, 1 of 7
    for iteration, blend in ((0, (0.4, 0.4, 0.2)), (160, (1 / 3,) * 3), (80, (11 / 30, 11 / 30, 4 / 15))):
        omega = [blend[0] * 7 / 3, blend[1] * 7 / 3, blend[2] * 7]
        wanted = [[omega[i % 3] * x for x in d] for i, d in enumerate(DELTA[:5])]
        same(run(sections.TurnOpdMethod(), rows, iteration), wanted)
    capped = TurnOpd(sections.TurnOpdMethod(), Depth(1.0, 1)).advantages(rows, 7)
    same(capped, [DELTA[0], [0.0], [0.0], DELTA[3], [0.0, 0.0]])
    warming = TurnOpd(sections.TurnOpdMethod()).at_depth(Depth(1.0, 1)).advantages(rows, 2)
    assert all(np.any(one.total) == np.any(d) for one, d in zip(warming, DELTA, strict=False)), "no cap yet"


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=5),
    st.integers(0, 200),
    st.integers(0, 1000),
)
def test_turnopd_s_token_mean_is_the_blended_sum_of_depth_means(
    lengths: list[list[int]], iteration: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        row(str(e), turn, [0.0] * size, teacher_nats=rng.normal(size=size).astype(np.float32))
        for e, sizes in enumerate(lengths)
        for turn, size in enumerate(sizes)
    ]
    method = TurnOpd(sections.TurnOpdMethod(blend_to=100))
    mean = np.concatenate([one.total for one in method.advantages(rows, iteration)]).mean()
    blend = method.blend(Counter(one.turn for one in rows), iteration)
    assert sum(blend.values()) == pytest.approx(1.0)
    by_depth = {
        turn: np.concatenate([one.teacher_nats for one in rows if one.turn == turn]).mean()  # type: ignore[misc]
        for turn in blend
    }
    assert mean == pytest.approx(sum(blend[turn] * by_depth[turn] for turn in blend), abs=1e-5)


def test_turnopd_s_controller() -> None:
    def gap(episode: str, turn: int, nats_lost: float, won: bool = False) -> Row:
        return row(episode, turn, [-1.0], teacher_nats=nats([-1.0 - nats_lost]), won=won)

    rows = [gap("a", 0, 0.1), gap("b", 0, 0.3, True), gap("a", 1, 0.6), gap("b", 1, 0.6, True)]
    rows.append(gap("b", 2, 0.6, True))
    # K = 0.2, 0.6, 0.6; n / n_1 = 1, 1, 0.5; m = 0.2, 0.6, 0.3; sum t m / sum m = 2.3 / 1.1
    assert probed_depth(rows, sections.TurnOpdMethod()) == 2.0
    assert probed_depth(rows, sections.TurnOpdMethod(min_successes=1)) == 3.0
    assert probed_depth([gap("a", 0, -1.0)], sections.TurnOpdMethod()) == 0.0
    uncut = sections.TurnOpdMethod().depth_cut.uncut
    assert [iteration for iteration in range(24) if uncut(iteration)] == [0, 1, 2, 3, 11, 19]
    first = TurnOpd(sections.TurnOpdMethod()).next_depth(rows, 0)
    assert first == Depth(2.0, 3)
    later = TurnOpd(sections.TurnOpdMethod(min_successes=1)).at_depth(first)
    probed = later.next_depth(rows, 3)
    assert probed.average_turns == pytest.approx(0.7 * 2 + 0.3 * 3)
    assert probed.cap_turns == 3
    assert later.next_depth(rows, 4) == first, "a rollout that was cut says nothing about depth"
    assert next_cap(None, 4.0, sections.TurnOpdMethod()) == (4.0, 5)
    assert next_cap(4.0, 8.0, sections.TurnOpdMethod()) == (pytest.approx(5.2), 6)
    assert next_cap(None, 0.0, sections.TurnOpdMethod())[1] == 2
    assert next_cap(None, 90.0, sections.TurnOpdMethod())[1] == 30


# ---------------------------------------------------------------------- outcome and distillation


def test_opid_adds_a_thousandth_of_the_log_ratio() -> None:
    same(run(sections.OpidMethod(), example("skill_nats")), plus_outcome(0.001))


def test_sod_three_turn_two_episode_example() -> None:
    # a: d = 0.5, 0, 0.1; weights 1, 1.2, 1.2. b: d = 1, 0.1, 1; weights 1, 1.2, 1
    wanted = [[5.5, 4.5], [5.0], [5.12], [-6.0], [-5.12, -4.88], [-4.0]]
    same(run(sections.SodMethod(), example("teacher_nats")), wanted)


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=8))
def test_sod_s_weights_telescope(drifts: list[float]) -> None:
    method = Sod(sections.SodMethod(headroom=1e9))
    product, e = 1.0, 1e-6
    for index, weight in enumerate(method.weights(drifts)):
        if index:
            product *= (drifts[index - 1] + e) / (drifts[index] + e)
        assert weight == pytest.approx(product, rel=1e-9)
    assert max(Sod(sections.SodMethod()).weights(drifts)) <= 1.2 + 1e-12


def test_opid_without_any_readable_analysis_is_grpo() -> None:
    same(run(sections.OpidMethod(), example()), plus_outcome(0.0))


# ---------------------------------------------------------------------- outcome, reshaped


def test_rlsd_three_turn_two_episode_example() -> None:
    up, down = float(np.exp(0.1)), float(np.exp(-0.1))
    half = [[5.5, 4.5], [5.0], [2.5 + 2.5 * up], [-5.5], [-2.5 - 2.5 * up, -2.5 - 2.5 * down], [-4.5]]
    same(run(sections.RlsdMethod(), example("skill_nats")), half)
    assert run(sections.RlsdMethod(), example("skill_nats"), 50)[0].total.tolist() == [5.25, 4.75]
    for late in (100, 5000):
        same(run(sections.RlsdMethod(), example("skill_nats"), late), plus_outcome(0.0))
    same(run(sections.RlsdMethod(mix_iterations=0), example("skill_nats"), 5000), half)


ratios = st.lists(st.floats(-300, 300, width=32), min_size=6, max_size=6)


def with_ratios(name: str, values: list[float]) -> list[Row]:
    rows = example()
    return [
        replace(one, **{name: (one.plain_nats + value).astype(np.float32)})
        for one, value in zip(rows, values, strict=True)
    ]


@given(ratios, st.floats(0, 1), st.floats(0, 1), st.integers(0, 120))
def test_rlsd_never_flips_the_sign(values: list[float], mix: float, bound: float, iteration: int) -> None:
    section = sections.RlsdMethod(mix=mix, bound=bound)
    for one, outcome in zip(run(section, with_ratios("skill_nats", values), iteration), OUTCOME, strict=True):
        share = one.total / outcome
        assert (share >= 1 - mix * bound - 1e-5).all()
        assert (share <= 1 + mix * bound + 1e-5).all()


def test_opsd_s_other_estimators_draw_every_scored_row_to_its_distributions() -> None:
    rows = [
        replace(one, skill_distributions=TokenDistributions(np.zeros((len(one.mask), 1), np.int32), nats([])))
        for one in example("skill_nats")
    ]
    rows[2] = replace(rows[2], skill_nats=None, skill_distributions=None)
    result = run(sections.OpsdMethod(coefficient=0.5, beta=0.3, estimator="full"), rows)
    for one, seen in zip(result, rows, strict=True):
        assert not one.total.any()
        found = [(target.distributions, target.weight, target.mix) for target in one.targets]
        assert found == ([] if seen.skill_nats is None else [(seen.skill_distributions, 0.5, 0.3)])


def test_agentopsd_three_turn_two_episode_example() -> None:
    # the belief starts at the success rate 0.5. a: e = 0, 0, 0.1; q = 0, 0, 0.02498; z = -0.7071 (2), 1.4142
    # b: e = -1, 0, 1; c = -1, -0.95, 0.0975; q = 0.23106, -0.00994, -0.24547; z = 1.2294, -0.0094, -1.2200
    low = 5 * (0.5 + 0.5 * (1 - 0.2 / 2**0.5))
    wanted = [[low, low], [low], [5.5], [-5.5], [-4.99531, -4.99531], [-4.5]]
    result = run(sections.AgentOpsdMethod(), example("skill_nats"))
    for one, values in zip(result, wanted, strict=True):
        np.testing.assert_allclose(one.total, values, atol=2e-5)


@given(ratios, st.floats(0, 1), st.floats(0, 1))
def test_agentopsd_s_bounds(values: list[float], mix: float, bound: float) -> None:
    section = sections.AgentOpsdMethod(mix=mix, bound=bound)
    for one, outcome in zip(run(section, with_ratios("skill_nats", values)), OUTCOME, strict=True):
        assert np.abs(one.total / outcome - 1).max() <= mix * bound + 1e-5


def test_agentopsd_without_change_of_belief_is_grpo() -> None:
    same(run(sections.AgentOpsdMethod(), with_ratios("skill_nats", [0.0] * 6)), plus_outcome(0.0))
    lone = [row("a", 0, [-1.0], 10.0, won=True, skill_nats=nats([3.0])), row("b", 0, [-1.0])]
    same(run(sections.AgentOpsdMethod(), lone), [[5.0], [-5.0]])


def test_agentopsd_takes_a_row_whose_skill_did_not_fit_as_no_evidence() -> None:
    rows = example("skill_nats")
    without = run(sections.AgentOpsdMethod(), [*rows[:5], replace(rows[5], skill_nats=None)])
    silent = run(sections.AgentOpsdMethod(), [*rows[:5], replace(rows[5], skill_nats=rows[5].plain_nats)])
    same(without, [one.total.tolist() for one in silent])
    assert without[4].total[0] != pytest.approx(run(sections.AgentOpsdMethod(), rows)[4].total[0], abs=1e-3)


def peer_rows() -> list[Row]:
    rows = example()
    rows[4] = row(
        "b",
        1,
        [-1.0, -1.0, -1.0],
        peer_nats=nats([-9.0, -1.1, -0.5]),
        action_mask=np.array([False, True, True]),
    )
    return rows


def test_stepopsd_reshapes_action_tokens_and_keeps_the_budget() -> None:
    # sign(A) Delta = 0.1, -0.5; w = 1.04996, 0.75508 cut to 0.8; 0.8 + 0.2 w = 1.00999, 0.96; mean 0.98500
    result = run(sections.StepOpsdMethod(), peer_rows())
    np.testing.assert_allclose(result[4].total, [-5.0, -5.126884, -4.873116], atol=1e-5)
    assert np.abs(result[4].total[1:]).mean() == pytest.approx(5.0, abs=1e-6)
    same([*result[:4], result[5]], [*plus_outcome(0.0)[:4], [-5.0]])
    for late in (50, 999):
        assert run(sections.StepOpsdMethod(), peer_rows(), late)[4].total.tolist() == [-5.0] * 3


@given(
    st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=6),
    st.floats(-9, 9),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)
def test_stepopsd_gives_every_step_the_same_mean_budget(
    values: list[float], outcome: float, mix: float, bound: float
) -> None:
    plain = nats([-1.0] * len(values))
    scored = row("a", 0, plain.tolist(), 2 * outcome, peer_nats=plain + nats(values),
                 action_mask=np.ones(len(values), np.bool_))  # fmt: skip
    section = sections.StepOpsdMethod(mix=mix, bound=bound)
    first = run(section, [scored, row("b", 0, [-1.0])])[0].total
    assert np.abs(first).mean() == pytest.approx(abs(outcome), abs=1e-4)
    assert (np.sign(first) == np.sign(np.float32(outcome))).all() or outcome == pytest.approx(0, abs=1e-30)


def test_stepopsd_needs_the_action_of_a_scored_row_and_leaves_one_without_action() -> None:
    rows = peer_rows()
    with pytest.raises(ArtifactError, match="no marked action"):
        run(sections.StepOpsdMethod(), [*rows[:4], replace(rows[4], action_mask=None), rows[5]])
    none = replace(rows[4], action_mask=np.zeros(3, np.bool_))
    assert run(sections.StepOpsdMethod(), [*rows[:4], none, rows[5]])[4].total.tolist() == [-5.0] * 3


def test_pivotrl_keeps_turns_whose_observation_went_both_ways() -> None:
    keys = ["room", "shelf", "desk", "room", "fridge", "desk"]
    rows = [replace(one, observation_key=key) for one, key in zip(example(), keys, strict=True)]
    same(run(sections.PivotRlMethod(), rows), [[5.0, 5.0], [0.0], [5.0], [-5.0], [0.0, 0.0], [-5.0]])
    other = [replace(rows[0], group="h"), *rows[1:]]  # the same observation of another task does not count
    assert run(sections.PivotRlMethod(), other)[3].total.tolist() == [0.0]
    twice = [replace(one, observation_key="room") if one.episode == "b" else one for one in rows[3:]]
    assert all(not one.total.any() for one in run(sections.PivotRlMethod(), twice)), "one episode, one return"


# ---------------------------------------------------------------------- outcome and an auxiliary loss


@pytest.mark.parametrize("section", [sections.SdarMethod, sections.SkillSdMethod])
def test_methods_with_an_auxiliary_loss_hand_it_the_skill_s_score(section: type[sections.Settings]) -> None:
    rows = example("skill_nats")
    result = run(section(), rows)
    same(result, plus_outcome(0.0))
    for one, seen in zip(result, rows, strict=True):
        assert one.auxiliary_nats is seen.skill_nats
    assert make_method(section(), 0).auxiliary is not None


@pytest.mark.parametrize("section", [sections.GrpoMethod, sections.SkillGrpoMethod])
def test_grpo_takes_any_prompt(section: type[sections.Settings]) -> None:
    same(run(section(), example("skill_nats")), plus_outcome(0.0))


# ---------------------------------------------------------------------- equal returns


@pytest.mark.parametrize(
    "section",
    [
        sections.GrpoMethod,
        sections.PivotRlMethod,
        sections.StepOpsdMethod,
        sections.RlsdMethod,
        sections.AgentOpsdMethod,
        sections.SkillGrpoMethod,
    ],
)
@pytest.mark.parametrize("value", [0.0, 10.0])
def test_equal_returns_are_exactly_zero_for_methods_that_only_shape_the_outcome(
    section: type[sections.Settings], value: float
) -> None:
    rows = [
        replace(one, episode_return=value, peer_nats=one.skill_nats,
                action_mask=np.ones(len(one.plain_nats), np.bool_), observation_key="same")
        for one in example("skill_nats")
    ]  # fmt: skip
    assert not any(one.total.any() for one in run(section(), rows))


# ---------------------------------------------------------------------- empty, single, not a number


def fully_scored() -> list[Row]:
    """The six rows with every signal; all of them equal the student's own score."""
    return [
        replace(one, skill_nats=one.plain_nats, teacher_nats=one.plain_nats, peer_nats=one.plain_nats,
                action_mask=np.ones(len(one.plain_nats), np.bool_), observation_key="same")
        for one in example()
    ]  # fmt: skip


every = pytest.mark.parametrize("section", ENTRIES, ids=lambda section: section.model_fields["name"].default)


@every
def test_no_rows_a_lone_episode_and_empty_responses_give_no_advantage(
    section: type[sections.Settings],
) -> None:
    assert run(section(), []) == []
    assert not any(one.total.any() for one in run(section(), fully_scored()[:3]))
    none = np.zeros(0, np.float32)
    empty = [
        replace(one, plain_nats=none, skill_nats=none, teacher_nats=none, peer_nats=none,
                mask=np.zeros(0, np.bool_), action_mask=np.zeros(0, np.bool_))
        for one in fully_scored()
    ]  # fmt: skip
    assert all(one.total.size == 0 for one in run(section(), empty))
    make_method(section(), 0).next_depth(empty, 0)


@every
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_return_that_is_not_finite_stops_every_method_that_uses_returns(
    section: type[sections.Settings], value: float
) -> None:
    rows = fully_scored()
    rows[0] = replace(rows[0], episode_return=value)
    if issubclass(section, sections.OutcomeMethod):
        with pytest.raises(NumericsError, match="is not finite"):
            run(section(), rows)
    else:
        assert all(np.isfinite(one.total).all() for one in run(section(), rows))
