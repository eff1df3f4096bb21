"""What crosses the wire is what was sent, bit for bit; anything else is one clear error."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import ConfigError, EngineFault
from pivotopd.models.base import Completion, Request, Sampling, ScoreRequest, TokenDistributions
from pivotopd.services import wire

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=8)
NATS = st.floats(width=32, allow_nan=False)


@given(st.lists(st.tuples(IDS, st.integers(-(2**63), 2**63 - 1)), max_size=5), st.floats(0, 2))
def test_requests_come_back(rows: list[tuple[list[int], int]], temperature: float) -> None:
    requests, sampling = [Request(ids, seed) for ids, seed in rows], Sampling(temperature, 7)
    assert wire.unpack_requests(wire.pack_requests(requests, sampling)) == (requests, sampling)


@given(st.lists(st.tuples(IDS, IDS), max_size=5))
def test_score_requests_come_back(rows: list[tuple[list[int], list[int]]]) -> None:
    requests = [ScoreRequest(prompt, response) for prompt, response in rows]
    assert wire.unpack_score_requests(wire.pack_score_requests(requests)) == requests


@given(st.lists(st.lists(NATS, max_size=6), max_size=5))
def test_completions_and_scores_are_bit_equal(rows: list[list[float]]) -> None:
    nats = [np.array(row, np.float32) for row in rows]
    sent = [Completion(np.arange(len(n), dtype=np.int32), n, "stop", i) for i, n in enumerate(nats)]
    got = wire.unpack_completions(wire.pack_completions(sent))
    assert [(c.response_ids.tobytes(), c.logprobs_nats.tobytes(), c.cached_tokens) for c in got] == [
        (c.response_ids.tobytes(), c.logprobs_nats.tobytes(), c.cached_tokens) for c in sent
    ]
    assert [n.tobytes() for n in wire.unpack_scores(wire.pack_scores(nats))] == [n.tobytes() for n in nats]


def test_a_cut_response_stays_cut() -> None:
    sent = Completion(np.array([3], np.int32), np.array([-0.5], np.float32), "length")
    assert wire.unpack_completions(wire.pack_completions([sent]))[0].finish_reason == "length"


@given(st.lists(st.integers(0, 3), max_size=4), st.integers(1, 3))
def test_distributions_come_back(lengths: list[int], width: int) -> None:
    sent = [
        (
            -np.arange(n, dtype=np.float32),
            TokenDistributions(
                np.arange(n * width, dtype=np.int32).reshape(n, width),
                -np.arange(n * width, dtype=np.float32).reshape(n, width),
            ),
        )
        for n in lengths
    ]
    got = wire.unpack_distributions(wire.pack_distributions(sent))
    for (nats, held), (sent_nats, sent_held) in zip(got, sent, strict=True):
        assert nats.tobytes() == sent_nats.tobytes()
        assert held.ids.tolist() == sent_held.ids.tolist()
        assert held.nats.tobytes() == sent_held.nats.tobytes()


@pytest.mark.parametrize("top_tokens", [None, 7])
def test_requests_for_distributions_come_back(top_tokens: int | None) -> None:
    requests = [ScoreRequest([1, 2], [3])]
    message = wire.pack_distribution_requests(requests, top_tokens)
    assert wire.unpack_distribution_requests(message) == (requests, top_tokens)


def test_an_id_that_no_vocabulary_has_is_no_traceback() -> None:
    with pytest.raises(ConfigError, match="more than 32 bits"):
        wire.pack_requests([Request([1, 2**31], 0)], Sampling(1.0, 2))
    with pytest.raises(ConfigError, match="more than 32 bits"):
        wire.pack_score_requests([ScoreRequest([1], [2**40])])


@given(st.binary(max_size=64))
def test_garbage_is_one_error(garbage: bytes) -> None:
    with pytest.raises(EngineFault, match="damaged"):
        wire.unpack_scores(garbage)


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_message_that_was_cut_off_is_one_error(kept: int) -> None:
    message = wire.pack_scores([np.array([-1.0, -2.0], np.float32)])
    with pytest.raises(EngineFault, match="damaged"):
        wire.unpack_scores(message[:kept])


def test_a_message_of_another_kind_is_one_error() -> None:
    with pytest.raises(EngineFault, match="prompt is missing"):
        wire.unpack_score_requests(wire.pack_scores([]))


def test_files_that_are_no_arrays_are_one_error() -> None:
    message = io.BytesIO()
    with zipfile.ZipFile(message, "w") as archive:
        for name in ("prompt", "prompt_lengths", "seeds", "temperature", "max_tokens"):
            archive.writestr(name, "no array")
    with pytest.raises(EngineFault, match="something other than arrays"):
        wire.unpack_requests(message.getvalue())
