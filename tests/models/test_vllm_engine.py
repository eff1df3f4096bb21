"""vLLM against the default engine, on one small model; and what is said where it is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pivotopd.config import TinyStudent
from pivotopd.errors import ArtifactError, ConfigError, EngineFault, NumericsError
from pivotopd.learner_state import STATE_FILE
from pivotopd.models.base import Completion, Request, Sampling, ScoreRequest
from pivotopd.models.checkpoint import Policy, load_policy, make_policy, read_text_side, save_policy
from pivotopd.models.in_flight import Continuous
from pivotopd.models.parity import Probe
from pivotopd.models.tiny import build_model, build_tokenizer
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.models.vllm_engine import VllmEngine, check_model, check_vllm
from pivotopd.models.vllm_worker import Owner
from pivotopd.stops import StopSignal
from tests.child_process import engines_of, lives, patience, wait_until
from tests.models.conftest import PHRASES

SHAPE = TinyStudent(layers=2, hidden=64, heads=2, kv_heads=1, intermediate=64)
"""vLLM knows no heads of fewer than 32 dimensions."""
PATIENCE_S = 600
"""So that an engine that does not answer fails its test."""
GONE_S = 60


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    with patience(PATIENCE_S):
        yield


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
    with_optimizer(folder)
    # What a folder recommends must not leak into the draws.
    cutting = {"do_sample": True, "top_k": 1, "top_p": 0.1, "temperature": 0.2, "repetition_penalty": 3.0}
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | cutting))
    return folder


@pytest.fixture(scope="module")
def noisy(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model after an update: every weight has moved, the head (tied to the embedding) with them."""
    one = load_policy(model)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(0.2 * parameter.std() * torch.randn(parameter.shape, generator=draws))
    folder = tmp_path_factory.mktemp("vllm-noisy") / "model"
    save_policy(one, folder)
    shutil.copy(model / "generation_config.json", folder)
    return with_optimizer(folder)


def with_optimizer(folder: Path) -> Path:
    """Put an optimizer's state beside the weights, as a checkpoint of a training has it."""
    weights = load_file(folder / "model.safetensors")
    state = {
        f"model.{name}/{part}": one * 0 for name, one in weights.items() for part in ("exp_avg", "weight")
    }
    save_file(state, folder / STATE_FILE)
    return folder


@pytest.fixture(scope="module")
def policy(model: Path) -> Policy:
    """The model as the default engine has it; it ends about every ninth token."""
    one = load_policy(model)
    stops = tuple(range(1, len(one.tokenizer), 9))
    return Policy(one.model, one.tokenizer, one.codec, stops, one.pad_id)


@pytest.fixture(scope="module")
def installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("PIVOTOPD_REQUIRE_VLLM") == "1":
            pytest.fail("PIVOTOPD_REQUIRE_VLLM=1, and vLLM is not installed")
        pytest.skip("vLLM is not installed (PIVOTOPD_REQUIRE_VLLM=1 makes this a failure)")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


@pytest.fixture(scope="module")
def engine(installed: None, model: Path, policy: Policy) -> Iterator[VllmEngine]:
    with patience(PATIENCE_S):
        made = VllmEngine(
            model, policy.stop_ids, dtype="float32", max_tokens=128, concurrency=8, policy="first"
        )
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


@pytest.mark.slow
def test_scores_are_those_of_the_default_engine(engine: VllmEngine, policy: Policy) -> None:
    rng = np.random.default_rng(3)
    size = len(policy.tokenizer)
    requests = [
        ScoreRequest(rng.integers(3, size, 20).tolist(), rng.integers(3, size, 1 + row).tolist())
        for row in range(5)
    ]
    before, default = engine.counts, TransformersEngine(policy)
    for ours, theirs in zip(engine.score(requests), default.score(requests), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    spent = engine.counts - before
    assert (spent.scored_rows, spent.scored_context_tokens, spent.scored_tokens) == (5, 100, 15)
    for top in (3, None):
        found = engine.score_distributions(requests, top)
        wanted = default.score_distributions(requests, top)
        for (nats, ours_), (theirs, likeliest) in zip(found, wanted, strict=True):
            np.testing.assert_allclose(nats, theirs, atol=1e-4)
            np.testing.assert_allclose(ours_.nats, likeliest.nats, atol=1e-4)
            assert ours_.ids.shape == likeliest.ids.shape
    assert engine.score([]) == []


@pytest.mark.slow
def test_prompts_that_begin_alike_are_computed_once(engine: VllmEngine, policy: Policy) -> None:
    long = np.random.default_rng(9).integers(3, len(policy.tokenizer), 100).tolist()
    engine.generate([Request(long, 0)], Sampling(1.0, 1))
    (again,) = engine.generate([Request([*long, 5], 0)], Sampling(1.0, 1))
    assert 0 < again.cached_tokens <= 100


@pytest.mark.slow
def test_the_probe_sees_the_stale_head_and_the_mended_reload_has_none(
    engine: VllmEngine, model: Path, noisy: Path, policy: Policy
) -> None:
    probe = Probe(rows=4, vocabulary=len(policy.tokenizer), bound_nats=0.01)
    old, new = TransformersEngine(policy), TransformersEngine(load_policy(noisy))
    assert policy.model.config.tie_word_embeddings
    assert probe.check(engine, old).largest_nats < 1e-3
    with pytest.raises(NumericsError, match=r"nats apart, 0\.01 are allowed") as caught:
        probe.check(engine, new)
    assert caught.value.exit_code == 7

    engine.reload(noisy, "second", mend_head=False)
    assert engine.policy == "second", "vLLM reports success"
    with pytest.raises(NumericsError, match="nats apart"):
        probe.check(engine, new)

    engine.reload(noisy, "second")
    long = np.random.default_rng(9).integers(3, len(policy.tokenizer), 100).tolist()
    (fresh,) = engine.generate([Request(long, 0)], Sampling(1.0, 1))
    assert fresh.cached_tokens == 0, "what the old weights computed is forgotten"
    assert probe.check(engine, new).largest_nats < 1e-3
    with pytest.raises(NumericsError):
        probe.check(engine, old)

    engine.reload(model, "first")
    assert probe.check(engine, old).largest_nats < 1e-3


@pytest.mark.slow
def test_another_model_or_a_damaged_folder_leaves_the_engine_as_it_was(
    engine: VllmEngine, model: Path, policy: Policy, tmp_path: Path
) -> None:
    prompts, sampling = requests_of(policy), Sampling(0.0, 4)
    before = [one.response_ids.tolist() for one in engine.generate(prompts, sampling)]
    other = tmp_path / "other"
    tokenizer = build_tokenizer([*PHRASES, "a word that the model does not know"])
    save_policy(make_policy(build_model(SHAPE, tokenizer, 0), tokenizer), other)
    with pytest.raises(ArtifactError, match="another model"):
        engine.reload(other, "other")
    half = shutil.copytree(model, tmp_path / "half")
    weights = half / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match="damaged"):
        engine.reload(half, "half")
    assert engine.policy == "first"
    assert [one.response_ids.tolist() for one in engine.generate(prompts, sampling)] == before


@pytest.mark.slow
def test_an_interrupted_call_leaves_no_engine_behind(
    engine: VllmEngine, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop signal may come anywhere inside vLLM: what is half asked of it would be answered later."""
    closed: list[bool] = []

    def stops(*_: object, **__: object) -> None:
        raise StopSignal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "close", lambda: closed.append(True))
        patch.setattr(engine._llm.llm_engine, "step", stops)
        with pytest.raises(StopSignal):
            engine.generate(requests_of(policy), Sampling(1.0, 12))
        patch.setattr(engine._llm.llm_engine, "step", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(requests_of(policy), Sampling(1.0, 12))
    assert closed == [True]
    assert len(engine.generate(requests_of(policy), Sampling(1.0, 12))) == 12, "nothing is left of them"


def tokens(found: Sequence[Completion]) -> list[tuple[list[int], str]]:
    return [(one.response_ids.tolist(), one.finish_reason) for one in found]


@pytest.mark.slow
def test_what_ends_early_lands_early_and_new_prompts_join(
    engine: VllmEngine, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each landing is one step of vLLM's, as nothing is taken from the queue beyond it."""
    monkeypatch.setattr(engine._llm.llm_engine.engine_core.outputs_queue, "qsize", lambda: 0)
    requests, sampling = requests_of(policy, 24), Sampling(1.0, 90)
    before = engine.counts
    wanted = engine.generate(requests, sampling)
    whole = engine.counts - before
    sizes = [len(one.response_ids) for one in wanted]
    assert max(sizes) > 3 * min(sizes)
    before = engine.counts
    flight = engine.begin(sampling)
    assert flight.land() == {}
    assert isinstance(engine, Continuous)
    flight.send({key: requests[key] for key in range(8)})
    waiting, landings, sends = list(range(8, 24)), [], 1
    while landed := flight.land():
        landings.append(list(landed))
        assert tokens(list(landed.values())) == tokens([wanted[key] for key in landed])
        following, waiting = waiting[: len(landed)], waiting[len(landed) :]
        flight.send({key: requests[key] for key in following})
        sends += bool(following)
    flight.close()
    order = [key for keys in landings for key in keys]
    assert sorted(order) == list(range(24))
    shortest, *_, longest = sorted(range(8), key=lambda key: sizes[key])
    assert order.index(shortest) < order.index(longest)
    assert len(landings) > 8, "not all at once"
    spent = engine.counts - before
    assert spent.rounds == sends
    for name in ("prompts", "prompt_tokens", "generated_tokens"):
        assert getattr(spent, name) == getattr(whole, name) > 0


@pytest.mark.slow
def test_a_batch_beside_a_flight_takes_nothing_of_it(engine: VllmEngine, policy: Policy) -> None:
    requests, sampling = requests_of(policy), Sampling(1.0, 12)
    wanted = tokens(engine.generate(requests, sampling))
    flight, found = engine.begin(sampling), dict[int, Completion]()
    flight.send(dict(enumerate(requests)))
    assert tokens(engine.generate(requests[::-1], sampling))[::-1] == wanted
    while landed := flight.land():
        found |= landed
    flight.close()
    assert tokens([found[key] for key in range(len(requests))]) == wanted


@pytest.mark.slow
def test_a_flight_that_is_given_up_leaves_the_engine_as_it_was(
    engine: VllmEngine, model: Path, policy: Policy
) -> None:
    requests, sampling = requests_of(policy), Sampling(1.0, 12)
    wanted = tokens(engine.generate(requests, sampling))
    given_up = engine.begin(Sampling(1.0, 90))
    given_up.send(dict(enumerate(requests)))
    given_up.close()
    given_up.close()
    assert given_up.land() == {}
    engine.reload(model, "first")
    flight = engine.begin(sampling)
    flight.send({key + 100: one for key, one in enumerate(requests)})
    flight.land()
    flight.close()
    assert tokens(engine.generate(requests, sampling)) == wanted
    assert engine._llm.llm_engine.get_num_unfinished_requests() == 0
    assert engine._outputs == {}


@pytest.mark.slow
@pytest.mark.parametrize("id_", [-1, 10_000_000])
def test_ids_outside_the_vocabulary_are_refused(engine: VllmEngine, policy: Policy, id_: int) -> None:
    with pytest.raises(ConfigError, match=f"token id {id_} is not in the vocabulary") as error:
        engine.generate([Request([5], 0), Request([5, id_], 0)], Sampling(1.0, 4))
    assert error.value.where == "request 1"
    with pytest.raises(ConfigError, match="not in the vocabulary"):
        engine.score([ScoreRequest([5], [6, id_])])
    assert len(engine.generate(requests_of(policy), Sampling(1.0, 4))) == 12


@pytest.mark.slow
def test_the_end_of_its_process_is_one_error(engine: VllmEngine, model: Path, policy: Policy) -> None:
    """The last test with the engine: it is killed while it owes an answer."""
    children = engines_of(os.getpid())
    assert len(children) > 1, "on a CPU the model is in a process of its own"
    os.kill(children[0], signal.SIGSTOP)
    killer = threading.Timer(1.0, os.kill, (children[0], signal.SIGKILL))
    killer.start()
    flight = engine.begin(Sampling(1.0, 12))
    flight.send(dict(enumerate(requests_of(policy))))
    with pytest.raises(EngineFault, match="vLLM's process ended") as caught:
        flight.land()
    killer.join()
    flight.close()
    with pytest.raises(EngineFault, match="has been ended"):
        engine.begin(Sampling(1.0, 12)).send(dict(enumerate(requests_of(policy))))
    assert caught.value.exit_code == 10
    assert "engine.gpu_memory_share" in str(caught.value.mend)
    with pytest.raises(EngineFault, match="has been ended"):
        engine.generate(requests_of(policy), Sampling(1.0, 12))
    with pytest.raises(EngineFault, match="has been ended"):
        engine.reload(model, "another")
    engine.close()
    wait_until(lambda: not any(map(lives, children)), GONE_S, f"left over: {children}")


def test_an_owner_is_a_text_that_vllm_can_hash_and_keeps_what_it_is_in_copies() -> None:
    owner = Owner.this_process()
    copied = pickle.loads(pickle.dumps(owner))
    assert type(copied) is Owner
    assert copied == owner
    assert json.loads(json.dumps({"owner": owner})) == {"owner": str(owner)}
    process, started = owner.split(" ")
    assert (int(process), started.isdigit()) == (os.getpid(), True)


@pytest.mark.parametrize(("started", "lives_on"), [("{now}", True), ("1", False)])
def test_a_process_that_unpickles_an_owner_ends_with_it(started: str, lives_on: bool) -> None:
    """An id that another process has by now is no owner: the time of its start decides."""
    process, now = Owner.this_process().split(" ")
    data = pickle.dumps(Owner(f"{process} {started.format(now=now)}"))
    code = f"import pickle, time; pickle.loads({data!r}); time.sleep(3)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S)
    assert done.returncode == (0 if lives_on else -signal.SIGKILL)


OWNER = """
import sys
from pivotopd.models.vllm_engine import VllmEngine

engine = VllmEngine(sys.argv[1], [0], dtype="float32", max_tokens=64, concurrency=2)
print("serves", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_serving_engine_ends_with_a_process_that_is_killed(model: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "serves\n"
        children = engines_of(owner.pid)
        assert len(children) > 1
        owner.kill()
        owner.communicate()
        wait_until(lambda: not any(map(lives, children)), GONE_S, "the engine outlives its owner")
    finally:
        if owner.poll() is None:
            os.killpg(owner.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_what_vllm_itself_does_not_know_is_refused(model: Path, tmp_path: Path) -> None:
    assert check_model(model)
    other = shutil.copytree(model, tmp_path / "other")
    settings = other / "config.json"
    told = json.loads(settings.read_text()) | {"architectures": ["NobodysForCausalLM"]}
    settings.write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="vLLM does not know the model: NobodysForCausalLM"):
        check_model(other)
    assert not check_model(other, may_fall_back=True)


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
