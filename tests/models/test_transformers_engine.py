from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from pivotopd.bill import Cost
from pivotopd.errors import ArtifactError, ConfigError, NumericsError
from pivotopd.models import transformers_engine
from pivotopd.models.base import Completion, Request, Sampling, ScoreRequest
from pivotopd.models.checkpoint import Policy
from pivotopd.models.prefixes import Branches
from pivotopd.models.repeats import Repeats
from pivotopd.models.sampling import draw, uniforms_of
from pivotopd.models.transformers_engine import TransformersEngine
from tests.models.conftest import small_policy

SAMPLING = Sampling(temperature=1.0, max_tokens=12)


@pytest.fixture(scope="module")
def stopping() -> Policy:
    """A policy that ends about every fifth token, so that rows finish at different steps."""
    policy = small_policy(1)
    ids = tuple(range(1, len(policy.tokenizer), 5))
    return Policy(policy.model, policy.tokenizer, policy.codec, ids, policy.pad_id)


def _requests(count: int, vocabulary: int) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(rng.integers(3, vocabulary, int(rng.integers(1, 30))).tolist(), seed) for seed in range(count)
    ]


def _by_hand(policy: Policy, request: Request, sampling: Sampling) -> tuple[list[int], list[float], str]:
    """Sample with whole forwards of one row: no cache, no padding, no batch."""
    ids, nats = list(request.prompt_ids), []
    uniforms = uniforms_of([request.seed], sampling.max_tokens)
    for step in range(sampling.max_tokens):
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[:, -1]
        token, logprob = draw(logits, sampling.temperature, uniforms[:, step])
        ids.append(int(token))
        nats.append(float(logprob))
        if ids[-1] in policy.stop_ids:
            return ids[len(request.prompt_ids) :], nats, "stop"
    return ids[len(request.prompt_ids) :], nats, "length"


def _same(first: Completion, second: Completion) -> None:
    assert first.response_ids.tolist() == second.response_ids.tolist()
    assert first.finish_reason == second.finish_reason
    np.testing.assert_allclose(first.logprobs_nats, second.logprobs_nats, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
def test_equals_sampling_by_hand(stopping: Policy, temperature: float) -> None:
    sampling = Sampling(temperature, 12)
    requests = _requests(16, len(stopping.tokenizer))
    found = TransformersEngine(stopping).generate(requests, sampling)
    reasons = set()
    for request, completion in zip(requests, found, strict=True):
        ids, nats, reason = _by_hand(stopping, request, sampling)
        assert completion.response_ids.tolist() == ids
        assert completion.finish_reason == reason
        np.testing.assert_allclose(completion.logprobs_nats, nats, atol=1e-4)
        assert completion.response_ids.dtype == np.int32
        assert completion.logprobs_nats.dtype == np.float32
        reasons.add(reason)
    if temperature == 1.0:
        assert reasons == {"stop", "length"}


@pytest.mark.parametrize("beyond", [-1, 0, 10_000])
def test_ids_outside_the_vocabulary_are_refused(stopping: Policy, beyond: int) -> None:
    engine = TransformersEngine(stopping)
    rows = stopping.model.get_input_embeddings().weight.shape[0]
    bad = -1 if beyond < 0 else rows + beyond
    whole = rf"token id {bad} is not in the vocabulary: the model knows 0 to {rows - 1}"
    with pytest.raises(ConfigError, match=whole) as error:
        engine.generate([Request([5, 6], 0), Request([5], 0), Request([rows - 1, bad], 0)], SAMPLING)
    assert error.value.where == "request 2"
    for prompt, response in (([bad, 5], [6]), ([5], [6, bad])):
        with pytest.raises(ConfigError, match=whole) as error:
            engine.score([ScoreRequest([0, rows - 1], []), ScoreRequest(prompt, response)])
        assert error.value.where == "request 1"
    with pytest.raises(ConfigError, match=whole):
        engine.score_distributions([ScoreRequest([5], [bad])], 2)


def test_neighbours_do_not_matter(stopping: Policy) -> None:
    requests = _requests(24, len(stopping.tokenizer))
    expected = TransformersEngine(stopping).generate(requests, SAMPLING)
    lengths = {len(completion.response_ids) for completion in expected}
    assert len(lengths) > 4, "rows must leave the batch at different steps for this test to mean anything"
    for max_batch, token_budget in ((1, 4096), (5, 4096), (24, 1), (7, 40)):
        engine = TransformersEngine(stopping, token_budget, max_batch)
        for first, second in zip(expected, engine.generate(requests, SAMPLING), strict=True):
            _same(first, second)
    backwards = TransformersEngine(stopping).generate(requests[::-1], SAMPLING)[::-1]
    for first, second in zip(expected, backwards, strict=True):
        _same(first, second)


def test_seed_decides_and_a_longer_limit_only_continues(policy: Policy) -> None:
    engine = TransformersEngine(policy)
    prompt = [5, 6, 7, 8]
    first, again, other = engine.generate([Request(prompt, seed) for seed in (1, 1, 2)], SAMPLING)
    _same(first, again)
    assert first.response_ids.tolist() != other.response_ids.tolist()
    longer = engine.generate([Request(prompt, 1)], Sampling(1.0, 100))[0]
    assert longer.response_ids.tolist()[: len(first.response_ids)] == first.response_ids.tolist()
    # Past GROW_SLOTS the cache has grown on the way.
    assert len(longer.response_ids) == 100
    _same(longer, Completion(*_arrays(_by_hand(policy, Request(prompt, 1), Sampling(1.0, 100)))))


def _arrays(parts: tuple[list[int], list[float], Any]) -> tuple[Any, Any, Any]:
    return np.asarray(parts[0], np.int32), np.asarray(parts[1], np.float32), parts[2]


def test_scores_equal_the_behaviour_logprobs(stopping: Policy) -> None:
    engine = TransformersEngine(stopping)
    requests = _requests(24, len(stopping.tokenizer))
    sampled = engine.generate(requests, SAMPLING)
    rows = [
        ScoreRequest(request.prompt_ids, completion.response_ids)
        for request, completion in zip(requests, sampled, strict=True)
    ]
    scores = engine.score(rows)
    for completion, score in zip(sampled, scores, strict=True):
        assert score.dtype == np.float32
        np.testing.assert_allclose(score, completion.logprobs_nats, atol=1e-4)
    for budget in (1, 50):
        for score, other in zip(scores, TransformersEngine(stopping, budget).score(rows), strict=True):
            np.testing.assert_allclose(score, other, atol=1e-5)
    alone = engine.score([rows[3]])[0]
    np.testing.assert_allclose(alone, scores[3], atol=1e-5)


@pytest.mark.parametrize("width", [1, 7, None])
def test_distributions_are_the_likeliest_of_whole_forwards(stopping: Policy, width: int | None) -> None:
    rows = [
        ScoreRequest(one.prompt_ids, one.prompt_ids[::-1]) for one in _requests(9, len(stopping.tokenizer))
    ]
    engine = TransformersEngine(stopping, 60)
    found = engine.score_distributions(rows, width)
    vocabulary = stopping.model.config.vocab_size
    for row, plain, (nats, top) in zip(rows, engine.score(rows), found, strict=True):
        np.testing.assert_array_equal(nats, plain)
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        with torch.inference_mode():
            whole = stopping.model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        assert top.ids.shape == top.nats.shape == (len(row.response_ids), width or vocabulary)
        assert (top.ids.dtype, top.nats.dtype) == (np.int32, np.float32)
        np.testing.assert_allclose(top.nats, whole.gather(1, torch.from_numpy(top.ids).long()), atol=1e-4)
        np.testing.assert_allclose(top.nats, whole.topk(width or vocabulary).values, atol=1e-4)
        assert all(len(set(one)) == len(one) for one in top.ids.tolist())
        if width is None:
            np.testing.assert_allclose(np.exp(top.nats).sum(axis=1), 1.0, atol=1e-5)
    assert engine.counts.scored_tokens == 2 * sum(len(row.response_ids) for row in rows)


@pytest.mark.parametrize("width", [0, 100_000])
def test_more_tokens_than_there_are_cannot_be_the_likeliest(policy: Policy, width: int) -> None:
    with pytest.raises(ConfigError, match="likeliest of"):
        TransformersEngine(policy).score_distributions([ScoreRequest([5], [6])], width)


def test_scores_under_another_model_differ(stopping: Policy) -> None:
    rows = [ScoreRequest([5, 6], [7, 8, 9])]
    first = TransformersEngine(stopping).score(rows)[0]
    second = TransformersEngine(small_policy(5)).score(rows)[0]
    assert np.abs(first - second).max() > 0.1


def test_counts(policy: Policy) -> None:
    engine = TransformersEngine(policy, token_budget=100)
    done = engine.generate([Request([5] * 4, 0), Request([5] * 10, 1)], Sampling(1.0, 3))
    generated = sum(len(completion.response_ids) for completion in done)
    engine.score([ScoreRequest([5] * 4, [6, 7]), ScoreRequest([5], [6])])
    counts = engine.counts
    # Prefill pads 4 to 10; scoring pads 2 to 6.
    assert (counts.prompts, counts.prompt_tokens, counts.generated_tokens) == (2, 14, generated)
    assert (counts.scored_tokens, counts.padded_tokens) == (3, 6 + 4)


def test_the_ledger_has_every_position_that_the_model_computed(policy: Policy) -> None:
    computed = 0

    def seen(module: object, arguments: object, named: dict[str, torch.Tensor]) -> None:
        nonlocal computed
        computed += named["input_ids"].numel()

    hook = policy.model.base_model.register_forward_pre_hook(seen, with_kwargs=True)
    engine = TransformersEngine(policy, token_budget=64, max_batch=8)
    try:
        engine.generate([Request([5 + n] * (1 + n % 7), n) for n in range(20)], Sampling(1.0, 24))
        engine.score([ScoreRequest([5] * (1 + n), [6] * (1 + n % 3)) for n in range(9)])
    finally:
        hook.remove()
    counts = engine.counts
    assert Cost(1, counts, {}).engine_positions == computed
    assert counts.idle_tokens > 0
    assert counts.padded_tokens > 0
    assert (counts.rounds, counts.prompts, counts.scored_rows) == (1, 20, 9)
    assert counts.scored_context_tokens == sum(range(1, 10))


def test_nothing_asked_nothing_done(policy: Policy) -> None:
    engine = TransformersEngine(policy)
    assert engine.generate([], SAMPLING) == []
    assert engine.score([]) == []
    assert engine.score([ScoreRequest([5], [])])[0].tolist() == []


@contextmanager
def _broken(policy: Policy, token: int) -> Iterator[None]:
    """Make the embedding of one token NaN, so that prompts with it have no finite logits."""
    weight = policy.model.get_input_embeddings().weight
    before = weight.data.clone()
    # Untie: only prompts that hold the token are broken.
    head = policy.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(before.clone())
    weight.data[token] = float("nan")
    try:
        yield
    finally:
        weight.data.copy_(before)
        head.weight = weight


def test_nan_names_the_request() -> None:
    policy = small_policy()
    engine = TransformersEngine(policy)
    requests = [Request([5, 6], 0), Request([5, 9, 6], 1), Request([5], 2)]
    with _broken(policy, 9):
        with pytest.raises(NumericsError, match="request 1"):
            engine.generate(requests, Sampling(1.0, 1))
        with pytest.raises(NumericsError, match="score request 1"):
            engine.score([ScoreRequest(request.prompt_ids, [5]) for request in requests])
    assert len(engine.generate(requests, Sampling(1.0, 1))) == 3


def test_bad_asks(policy: Policy) -> None:
    engine = TransformersEngine(policy)
    with pytest.raises(ConfigError, match="not a way to sample"):
        engine.generate([], Sampling(-1.0, 5))
    with pytest.raises(ConfigError, match="not a way to sample"):
        engine.generate([], Sampling(1.0, 0))
    with pytest.raises(ConfigError, match="pass the limit 4096"):
        engine.generate([Request([5] * 4090, 0)], Sampling(1.0, 7))
    with pytest.raises(ArtifactError, match="empty prompt"):
        engine.generate([Request([], 0)], SAMPLING)
    with pytest.raises(ConfigError, match="at least 1"):
        TransformersEngine(policy, max_batch=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_other_architectures(policy: Policy, kind: str) -> None:
    """Heads that are not tied, one without grouped heads, with several stop ids."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    shape = {
        "vocab_size": len(policy.tokenizer) + 7,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": 0.15,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = (
            LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=4))
            if kind == "llama"
            else Qwen2ForCausalLM(Qwen2Config(**shape, num_key_value_heads=2))
        ).eval()
    other = Policy(model, policy.tokenizer, policy.codec, (1, 50, 100, 150, 200, 250), 0)
    requests = _requests(9, len(policy.tokenizer))
    found = TransformersEngine(other, max_batch=5).generate(requests, SAMPLING)
    for request, completion in zip(requests, found, strict=True):
        _same(completion, Completion(*_arrays(_by_hand(other, request, SAMPLING))))


def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no row be known as another's equal."""
    for module in ("transformers_engine", "decoding"):
        monkeypatch.setattr(
            f"pivotopd.models.{module}.repeats_of",
            lambda keys: Repeats(tuple(range(len(keys))), tuple(range(len(keys)))),
        )


@pytest.mark.parametrize("max_batch", [5, 64])
def test_equal_prompts_are_read_once_and_go_on_by_their_own_seeds(
    stopping: Policy, max_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [one.prompt_ids for one in _requests(6, len(stopping.tokenizer))]
    requests = [Request(prompts[index % 6], index) for index in range(20)]
    engine = TransformersEngine(stopping, max_batch=max_batch)
    found = engine.generate(requests, SAMPLING)
    with monkeypatch.context() as patch:
        _apart(patch)
        apart = TransformersEngine(stopping, max_batch=max_batch)
        expected = apart.generate(requests, SAMPLING)
    for first, second in zip(found, expected, strict=True):
        _same(first, second)
    assert len({tuple(one.response_ids.tolist()) for one in found}) > 6
    assert apart.counts.cached_prompt_tokens == 0
    repeated = [one.cached_tokens for one in found]
    assert all(one in (0, len(request.prompt_ids)) for one, request in zip(repeated, requests, strict=True))
    if max_batch == 64:
        assert engine.counts.cached_prompt_tokens == sum(len(one.prompt_ids) for one in requests[6:])
        saved = Cost(1, apart.counts, {}).engine_positions - Cost(1, engine.counts, {}).engine_positions
        padding = apart.counts.padded_tokens - engine.counts.padded_tokens
        assert saved == engine.counts.cached_prompt_tokens + padding


def test_equal_rows_are_scored_once(stopping: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [one.prompt_ids for one in _requests(7, len(stopping.tokenizer))]
    rows = [ScoreRequest(texts[index % 7], texts[index % 3]) for index in range(30)]
    passes: list[int] = []
    branches = transformers_engine.branches_of

    def watched(distinct: Sequence[ScoreRequest], budget: int) -> tuple[list[Branches], list[int]]:
        passes.append(len(distinct))
        return branches(distinct, budget)

    monkeypatch.setattr(transformers_engine, "branches_of", watched)
    engine = TransformersEngine(stopping, 90)
    found, beside = engine.score(rows), engine.score_distributions(rows, 3)
    assert passes == [21, 21]
    with monkeypatch.context() as patch:
        _apart(patch)
        apart = TransformersEngine(stopping, 90)
        for one, other in zip(found, apart.score(rows), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        for (nats, top), (nats2, top2) in zip(beside, apart.score_distributions(rows, 3), strict=True):
            np.testing.assert_allclose(nats, nats2, atol=1e-5)
            np.testing.assert_allclose(top.nats, top2.nats, atol=1e-5)
    for name in ("scored_rows", "scored_context_tokens", "scored_tokens"):
        assert getattr(engine.counts, name) == getattr(apart.counts, name)
    repeated = sum(len(one.prompt_ids) + len(one.response_ids) for one in rows[21:])
    assert (engine.counts.repeated_rows, engine.counts.repeated_tokens) == (18, 2 * repeated)
    assert (apart.counts.repeated_rows, apart.counts.repeated_tokens) == (0, 0)
