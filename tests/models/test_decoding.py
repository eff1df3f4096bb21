"""Decoding: rows leave and enter a batch at any time, and no response is other than when asked alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.bill import Cost
from pivotopd.errors import ConfigError, NumericsError
from pivotopd.models import decoding
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.checkpoint import Policy
from pivotopd.models.in_flight import Continuous, InFlight
from pivotopd.models.transformers_engine import TransformersEngine
from tests.models.conftest import small_policy

SAMPLING = Sampling(1.0, 90)
"""Responses that outgrow the cache's first slots."""


@pytest.fixture(scope="module")
def ragged() -> Policy:
    """A policy whose responses end anywhere from the first token to the limit."""
    policy = small_policy(1)
    ids = tuple(range(1, len(policy.tokenizer), 25))
    return Policy(policy.model, policy.tokenizer, policy.codec, ids, policy.pad_id)


@pytest.fixture(scope="module")
def requests(ragged: Policy) -> list[Request]:
    """Prompts of 1 to 200 tokens, each fifth one equal to the one before."""
    rng = np.random.default_rng(0)
    size = len(ragged.tokenizer)
    prompts = [rng.integers(3, size, int(rng.integers(1, 200))).tolist() for _ in range(30)]
    return [Request(prompts[index - (index % 5 == 4)], index) for index in range(30)]


@pytest.fixture(scope="module")
def alone(ragged: Policy, requests: list[Request]) -> list[Completion]:
    """What each is answered without neighbours."""
    engine = TransformersEngine(ragged)
    found = [engine.generate([one], SAMPLING)[0] for one in requests]
    lengths = [len(one.response_ids) for one in found]
    assert min(lengths) < 10, "some must end early for these tests to mean anything"
    assert max(lengths) > 60, "and some late"
    return found


def _same(found: Completion, expected: Completion) -> None:
    assert found.response_ids.tolist() == expected.response_ids.tolist()
    assert found.finish_reason == expected.finish_reason
    np.testing.assert_allclose(found.logprobs_nats, expected.logprobs_nats, atol=1e-4)
    assert (found.response_ids.dtype, found.logprobs_nats.dtype) == (np.int32, np.float32)


def _rest(flight: InFlight) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while landed := flight.land():
        assert list(landed) == sorted(landed)
        assert not landed.keys() & found.keys()
        found |= landed
    return found


@settings(max_examples=12, deadline=None)
@given(data=st.data(), wait=st.sampled_from([0, 3, 16]), max_batch=st.sampled_from([1, 4, 64]))
def test_whatever_flies_beside_it_a_response_is_the_same(
    ragged: Policy,
    requests: list[Request],
    alone: list[Completion],
    data: st.DataObject,
    wait: int,
    max_batch: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "WAIT_STEPS", wait)
        flight = TransformersEngine(ragged, token_budget=300, max_batch=max_batch).begin(SAMPLING)
        left = data.draw(st.lists(st.integers(0, 29), min_size=1, max_size=12, unique=True))
        wanted, found = set(left), dict[int, Completion]()
        while left:
            size = data.draw(st.integers(1, len(left)))
            flight.send({key: requests[key] for key in left[:size]})
            left = left[size:]
            if data.draw(st.booleans()):
                found |= flight.land()
        found |= _rest(flight)
    assert found.keys() == wanted
    for key, completion in found.items():
        _same(completion, alone[key])


def test_what_ends_early_does_not_wait_for_what_ends_late(
    ragged: Policy, requests: list[Request], alone: list[Completion]
) -> None:
    flight = TransformersEngine(ragged).begin(SAMPLING)
    by_length = sorted(range(30), key=lambda key: len(alone[key].response_ids))
    first, last, later = by_length[0], by_length[-1], by_length[1]
    flight.send({first: requests[first], last: requests[last]})
    assert list(flight.land()) == [first]
    flight.send({later: requests[later]})
    assert list(flight.land()) == [later]
    assert list(flight.land()) == [last]
    assert flight.land() == {}


def test_more_than_fit_wait_for_room(
    ragged: Policy, requests: list[Request], alone: list[Completion]
) -> None:
    widest = 0

    def seen(module: object, arguments: object, named: dict[str, torch.Tensor]) -> None:
        nonlocal widest
        widest = max(widest, len(named["input_ids"]))

    hook = ragged.model.base_model.register_forward_pre_hook(seen, with_kwargs=True)
    try:
        flight = TransformersEngine(ragged, max_batch=3).begin(SAMPLING)
        flight.send(dict(enumerate(requests)))
        found = _rest(flight)
    finally:
        hook.remove()
    assert widest == 3
    for key, completion in found.items():
        _same(completion, alone[key])


def test_a_closed_flight_leaves_nothing_behind(
    ragged: Policy, requests: list[Request], alone: list[Completion]
) -> None:
    engine = TransformersEngine(ragged)
    assert isinstance(engine, Continuous)
    flight = engine.begin(SAMPLING)
    flight.send(dict(enumerate(requests)))
    flight.land()
    flight.close()
    assert flight.land() == {}
    again = engine.begin(SAMPLING)
    again.send({0: requests[7]})
    _same(again.land()[0], alone[7])


def test_the_ledger_has_every_position_of_a_flight(ragged: Policy, requests: list[Request]) -> None:
    computed = 0

    def seen(module: object, arguments: object, named: dict[str, torch.Tensor]) -> None:
        nonlocal computed
        computed += named["input_ids"].numel()

    hook = ragged.model.base_model.register_forward_pre_hook(seen, with_kwargs=True)
    engine = TransformersEngine(ragged, token_budget=400, max_batch=6)
    try:
        flight = engine.begin(SAMPLING)
        for start in range(0, 30, 10):
            flight.send({key: requests[key] for key in range(start, start + 10)})
            flight.land()
        _rest(flight)
    finally:
        hook.remove()
    counts = engine.counts
    assert Cost(1, counts, {}).engine_positions == computed
    assert (counts.prompts, counts.rounds) == (30, 3)
    assert counts.prompt_tokens == sum(len(one.prompt_ids) for one in requests)
    assert counts.idle_tokens > 0


def test_equal_prompts_that_come_together_are_read_once(ragged: Policy, requests: list[Request]) -> None:
    engine = TransformersEngine(ragged)
    flight = engine.begin(SAMPLING)
    flight.send({key: requests[key] for key in (3, 4)})
    found = _rest(flight)
    assert [found[key].cached_tokens for key in (3, 4)] == [0, len(requests[4].prompt_ids)]
    assert engine.counts.cached_prompt_tokens == len(requests[4].prompt_ids)


def test_bad_requests_are_refused_when_they_are_sent(ragged: Policy) -> None:
    engine = TransformersEngine(ragged)
    with pytest.raises(ConfigError, match="pass the limit"):
        engine.begin(SAMPLING).send({0: Request([5] * 4090, 0)})
    with pytest.raises(ConfigError, match="not a way to sample"):
        engine.begin(Sampling(-1.0, 5)).send({})


def test_weights_that_diverged_name_the_key() -> None:
    policy = small_policy()
    policy.model.get_output_embeddings().weight.data[7] = float("nan")
    flight = TransformersEngine(policy).begin(SAMPLING)
    flight.send({41: Request([5, 6], 0)})
    with pytest.raises(NumericsError, match="request 41"):
        flight.land()
