"""vLLM against the default engine, on one small model; and what is said where it is not installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pivotopd.config import TinyStudent
from pivotopd.errors import ConfigError
from pivotopd.models.base import Request, Sampling, ScoreRequest
from pivotopd.models.checkpoint import Policy, load_policy, make_policy, read_text_side, save_policy
from pivotopd.models.tiny import build_model, build_tokenizer
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.models.vllm_engine import VllmEngine, check_vllm
from tests.models.conftest import PHRASES

SHAPE = TinyStudent(layers=2, hidden=64, heads=2, kv_heads=1, intermediate=64)
"""vLLM knows no heads of fewer than 32 dimensions."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model whose tokens differ clearly in probability."""
    folder = tmp_path_factory.mktemp("vllm") / "model"
    tokenizer = build_tokenizer(PHRASES)
    network = build_model(SHAPE, tokenizer, 0)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.data *= 4
    save_policy(make_policy(network, tokenizer), folder)
    return folder


@pytest.fixture(scope="module")
def policy(model: Path) -> Policy:
    """The model as the default engine has it; it ends about every ninth token."""
    one = load_policy(model)
    stops = tuple(range(1, len(one.tokenizer), 9))
    return Policy(one.model, one.tokenizer, one.codec, stops, one.pad_id)


@pytest.fixture(scope="module")
def engine(model: Path, policy: Policy) -> Iterator[VllmEngine]:
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("PIVOTOPD_REQUIRE_VLLM") == "1":
            pytest.fail("PIVOTOPD_REQUIRE_VLLM=1, and vLLM is not installed")
        pytest.skip("vLLM is not installed (PIVOTOPD_REQUIRE_VLLM=1 makes this a failure)")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    made = VllmEngine(model, policy.stop_ids, dtype="float32", max_tokens=128, concurrency=8)
    yield made
    made.close()


def requests_of(policy: Policy, count: int = 12) -> list[Request]:
    rng = np.random.default_rng(0)
    size = len(policy.tokenizer)
    return [Request(rng.integers(3, size, int(rng.integers(1, 30))).tolist(), seed) for seed in range(count)]


@pytest.mark.slow
def test_the_most_likely_responses_are_those_of_the_default_engine(
    engine: VllmEngine, policy: Policy
) -> None:
    requests, sampling = requests_of(policy), Sampling(0.0, 12)
    wanted = TransformersEngine(policy).generate(requests, sampling)
    found = engine.generate(requests, sampling)
    assert {one.finish_reason for one in wanted} == {"stop", "length"}
    for one, other in zip(found, wanted, strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        assert one.finish_reason == other.finish_reason
        assert (one.response_ids.dtype, one.logprobs_nats.dtype) == (np.int32, np.float32)
        np.testing.assert_allclose(one.logprobs_nats, other.logprobs_nats, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_at_the_sampling_temperature(
    engine: VllmEngine, policy: Policy, temperature: float
) -> None:
    import torch

    requests = requests_of(policy)
    found = engine.generate(requests, Sampling(temperature, 12))
    for request, one in zip(requests, found, strict=True):
        ids, start = [*request.prompt_ids, *one.response_ids.tolist()], len(request.prompt_ids)
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0, start - 1 : -1]
        nats = torch.log_softmax(logits / temperature, dim=-1)
        wanted = nats[torch.arange(len(one.response_ids)), torch.tensor(ids[start:])].numpy()
        np.testing.assert_allclose(one.logprobs_nats, wanted, atol=1e-4)
    scored = TransformersEngine(policy).score(
        [ScoreRequest(one.prompt_ids, other.response_ids) for one, other in zip(requests, found, strict=True)]
    )
    same = all(np.allclose(a, b.logprobs_nats, atol=1e-4) for a, b in zip(scored, found, strict=True))
    assert same == (temperature == 1.0)


@pytest.mark.slow
def test_a_seed_alone_decides_a_response(engine: VllmEngine, policy: Policy) -> None:
    requests, sampling = requests_of(policy), Sampling(1.0, 12)
    ids = [one.response_ids.tolist() for one in engine.generate(requests, sampling)]
    backwards = engine.generate(requests[::-1], sampling)[::-1]
    assert [one.response_ids.tolist() for one in backwards] == ids
    (alone,) = engine.generate(requests[3:4], sampling)
    assert alone.response_ids.tolist() == ids[3]
    others = [Request(one.prompt_ids, one.seed + 100) for one in requests]
    assert [one.response_ids.tolist() for one in engine.generate(others, sampling)] != ids
    long = Request(requests[0].prompt_ids, 2**63 - 1)
    assert len(engine.generate([long], sampling)) == 1, "seeds have 63 bits"
    assert engine.generate([], sampling) == []


@pytest.mark.slow
def test_all_of_the_support_is_drawn(engine: VllmEngine, policy: Policy) -> None:
    """No top-k, no top-p: of many draws some lie far out, as often as the model says."""
    prompt = requests_of(policy)[0].prompt_ids
    found = engine.generate([Request(prompt, seed) for seed in range(600)], Sampling(1.0, 1))
    nats = np.array([float(one.logprobs_nats[0]) for one in found])
    import torch

    with torch.inference_mode():
        logits = policy.model(input_ids=torch.tensor([list(prompt)])).logits[0, -1].double()
    exact = torch.log_softmax(logits, dim=-1).numpy()
    entropy = float(-(np.exp(exact) * exact).sum())
    spread = float(np.sqrt((np.exp(exact) * exact**2).sum() - entropy**2) / np.sqrt(len(nats)))
    assert abs(-nats.mean() - entropy) < 5 * spread
    rank = (exact[None, :] > nats[:, None] + 1e-4).sum(axis=1)
    assert rank.max() > 20


@pytest.mark.slow
def test_what_does_not_fit_is_refused(engine: VllmEngine, policy: Policy) -> None:
    with pytest.raises(ConfigError, match="pass the limit 128"):
        engine.generate([Request([5] * 120, 0)], Sampling(1.0, 9))
    with pytest.raises(ConfigError, match="not a way to sample"):
        engine.generate(requests_of(policy), Sampling(-1.0, 9))


def test_an_engine_is_told_what_the_default_one_reads(model: Path) -> None:
    text, policy = read_text_side(model), load_policy(model)
    assert text.stop_ids == policy.stop_ids
    assert text.codec.fingerprint == policy.codec.fingerprint


def test_where_vllm_is_missing_the_way_to_it_is_shown(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="vLLM is not installed") as caught:
        check_vllm(where="teacher.engine")
    assert caught.value.where == "teacher.engine"
    assert caught.value.mend is not None
    assert "pip install 'pivotopd[vllm]'" in caught.value.mend
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        VllmEngine(model, [0], dtype="float32", max_tokens=8)
