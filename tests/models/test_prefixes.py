"""Prompts that begin alike are computed once: the same scores, fewer tokens, whatever the order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.bill import Cost
from pivotopd.errors import ArtifactError
from pivotopd.models import transformers_engine
from pivotopd.models.attention import can_branch, use_grouped_steps
from pivotopd.models.base import Nats, ScoreRequest
from pivotopd.models.checkpoint import Policy
from pivotopd.models.prefixes import SEGMENT_TOKENS, Branches, branch_packs, branches_of
from pivotopd.models.transformers_engine import TransformersEngine
from tests.models.conftest import small_policy

STEM = list(range(3, 43))
SHORT_IDS = st.lists(st.integers(1, 2), max_size=3)


def row(prompt: list[int], response: list[int]) -> ScoreRequest:
    return ScoreRequest(prompt, response)


def episode(seed: int, rows: int = 14) -> list[ScoreRequest]:
    """Plain and hinted prompts of some turns, equal prompts of a group, and rows that share nothing."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(rows):
        prompt = [*STEM, *rng.integers(3, 60, number % 5).tolist()]
        response = rng.integers(3, 60, number % 4).tolist()
        found += [row(prompt, response), row([*prompt[:-2], 50, 51, 52, *prompt[-2:]], response)]
        found.append(row(rng.integers(3, 60, 20).tolist(), response))
    return found


# ------------------------------------------------------------------ which rows


def test_a_stem_ends_before_the_last_prompt_token() -> None:
    rows = [row(STEM, [1, 2]), row(STEM, [3]), row([7, 8], [1])]
    assert branches_of(rows, 1_000) == ([Branches(39, (0, 1), 39 + 3 + 2)], [2])


def test_what_saves_less_than_its_pieces_cost_stays_alone() -> None:
    least = 3 * SEGMENT_TOKENS  # a stem and two rests
    for shared, together in ((least, False), (least + 1, True)):
        rows = [row([*STEM[:shared], 50], [1]), row([*STEM[:shared], 51], [1])]
        found, alone = branches_of(rows, 1_000)
        assert (bool(found), bool(alone)) == (together, not together)


def test_a_pack_is_never_larger_than_the_budget() -> None:
    rows = [row([*STEM, number], [1, 2]) for number in range(8)]
    found, alone = branches_of(rows, 50)  # a stem of 40 and three rests of 3 tokens
    assert [len(one.rows) for one in found] == [3, 3, 2]
    assert not alone
    assert max(pack.computed_tokens for pack in branch_packs(rows, found, 50)) <= 50
    assert [pack.computed_tokens for pack in branch_packs(rows, found, 100)] == [49 + 49, 46]
    assert branches_of(rows, 45) == ([], list(range(8)))


def test_a_pack_by_hand() -> None:
    rows = [row([*STEM, 90, 91], [1, 2]), row([9], [9]), row([*STEM, 92], [3])]
    (pack,) = branch_packs(rows, [Branches(40, (0, 2), 46)], 100)
    assert pack.input_ids.tolist() == [[*STEM, 90, 91, 1, 2, 92, 3]]
    assert pack.position_ids.tolist() == [[*range(40), 40, 41, 42, 43, 40, 41]]
    assert (pack.row_ends, pack.stems) == ((40, 44, 46), ((0, 0), (0, 40), (0, 40)))
    assert pack.response_positions.tolist() == [41, 42, 44]
    assert pack.targets.tolist() == [1, 2, 3]
    assert (pack.rows, pack.response_lengths, pack.padded_tokens) == ((0, 2), (2, 1), 0)


@given(st.lists(st.tuples(st.integers(0, 2), SHORT_IDS, SHORT_IDS), max_size=6), st.integers(1, 150))
def test_the_cut_is_the_cheapest_one_of_the_sorted_rows(
    drawn: list[tuple[int, list[int], list[int]]], budget: int
) -> None:
    rows = [row([*STEM[: 13 * stem], *prompt, 9], response) for stem, prompt, response in drawn]
    found, alone = branches_of(rows, budget)
    assert sorted([index for one in found for index in one.rows] + alone) == list(range(len(rows)))
    for one in found:
        prompts = [list(rows[index].prompt_ids) for index in one.rows]
        assert len({tuple(prompt[: one.stem_tokens]) for prompt in prompts}) == 1
        assert all(len(prompt) > one.stem_tokens for prompt in prompts)
        assert one.tokens <= budget
    taken = sum(one.tokens + (len(one.rows) + 1) * SEGMENT_TOKENS for one in found)
    taken += sum(len(rows[index].prompt_ids) + len(rows[index].response_ids) for index in alone)
    assert taken == min(costs(rows, budget))


def costs(rows: list[ScoreRequest], budget: int) -> Iterator[int]:
    """Yield the cost of every way to cut the sorted rows into pieces."""
    ordered = sorted(rows, key=lambda one: (list(one.prompt_ids), list(one.response_ids)))
    for count in range(len(ordered)):
        for cuts in combinations(range(1, len(ordered)), count):
            bounds = [0, *cuts, len(ordered)]
            pieces = [ordered[i:j] for i, j in pairwise(bounds)]
            found = [cost(piece, budget) for piece in pieces]
            if None not in found:
                yield sum(one for one in found if one is not None)
    if not ordered:
        yield 0


def cost(piece: list[ScoreRequest], budget: int) -> int | None:
    """Return what a piece costs; None where it is no pack."""
    whole = sum(len(one.prompt_ids) + len(one.response_ids) for one in piece)
    if len(piece) == 1:
        return whole
    stem = 0
    while all(len(one.prompt_ids) - 1 > stem for one in piece) and (
        len({one.prompt_ids[stem] for one in piece}) == 1
    ):
        stem += 1
    tokens = whole - (len(piece) - 1) * stem
    return None if stem <= SEGMENT_TOKENS or tokens > budget else tokens + (len(piece) + 1) * SEGMENT_TOKENS


# ------------------------------------------------------------------ what they score


def apart(policy: Policy, rows: list[ScoreRequest], monkeypatch: pytest.MonkeyPatch) -> list[Nats]:
    """Score each row by itself, right-padded."""
    with monkeypatch.context() as patch:
        patch.setattr(transformers_engine, "can_branch", lambda model: False)
        return TransformersEngine(policy).score(rows)


@pytest.mark.parametrize("budget", [60, 200, 2048])
def test_scores_are_those_of_rows_apart(policy: Policy, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    rows, engine = episode(0), TransformersEngine(policy, budget)
    for shared, alone in zip(engine.score(rows), apart(policy, rows, monkeypatch), strict=True):
        np.testing.assert_allclose(shared, alone, atol=1e-5)
    assert engine.counts.shared_context_tokens > 0.2 * engine.counts.scored_context_tokens


def test_distributions_are_those_of_rows_apart(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = episode(1)
    found = TransformersEngine(policy).score_distributions(rows, 5)
    for (nats, top), alone in zip(found, apart(policy, rows, monkeypatch), strict=True):
        np.testing.assert_allclose(nats, alone, atol=1e-5)
        assert top.ids.shape == (len(nats), 5)


def test_the_order_of_the_rows_changes_no_bit(policy: Policy) -> None:
    rows = episode(2)
    scores = TransformersEngine(policy, 300).score(rows)
    places = np.random.default_rng(0).permutation(len(rows))
    mixed = TransformersEngine(policy, 300).score([rows[place] for place in places])
    for place, found in zip(places, mixed, strict=True):
        assert found.tobytes() == scores[place].tobytes()


def test_a_hint_that_says_nothing_changes_nothing(policy: Policy) -> None:
    one, same, other = TransformersEngine(policy).score(
        [row(STEM, [5, 6]), row(list(STEM), [5, 6]), row([*STEM[:-1], 50, STEM[-1]], [5, 6])]
    )
    np.testing.assert_allclose(one, same, atol=1e-5)
    assert np.abs(one - other).max() > 1e-3, "what stands behind the stem counts"


def test_the_ledger_has_every_position(policy: Policy) -> None:
    computed = 0

    def seen(module: object, arguments: object, named: dict[str, torch.Tensor]) -> None:
        nonlocal computed
        computed += named["input_ids"].numel()

    rows, engine = episode(3), TransformersEngine(policy, 200)
    hook = policy.model.base_model.register_forward_pre_hook(seen, with_kwargs=True)
    try:
        engine.score(rows)
    finally:
        hook.remove()
    assert Cost(1, engine.counts, {}).engine_positions == computed
    assert engine.counts.scored_context_tokens == sum(len(one.prompt_ids) for one in rows)
    assert engine.counts.scored_tokens == sum(len(one.response_ids) for one in rows)
    assert engine.counts.scored_rows == len(rows)


def test_an_empty_prompt_is_named(policy: Policy) -> None:
    rows = [row(STEM, [5]), row(STEM, [6]), row([7], [5]), row([], [1])]
    with pytest.raises(ArtifactError, match="row 3 has an empty prompt"):
        TransformersEngine(policy).score(rows)


def test_a_model_whose_layers_forget_shares_nothing() -> None:
    policy = small_policy(4)
    assert not can_branch(policy.model), "attention is not ours yet"
    use_grouped_steps(policy.model)
    assert can_branch(policy.model)
    policy.model.config.sliding_window = 16
    assert not can_branch(policy.model)
    policy.model.config.sliding_window = None
    policy.model.config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_branch(policy.model)
