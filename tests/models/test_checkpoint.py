from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pivotopd.errors import ArtifactError, NumericsError, PivotError, StorageError
from pivotopd.models.base import Request, Sampling
from pivotopd.models.checkpoint import Policy, load_policy, make_policy, save_policy, weights_digest
from pivotopd.models.transformers_engine import TransformersEngine
from tests.models.chat import chat_tokenizer
from tests.models.conftest import SMALL, small_policy


@pytest.fixture
def folder(policy: Policy, tmp_path: Path) -> Path:
    save_policy(policy, tmp_path / "model")
    return tmp_path / "model"


def test_a_policy_comes_back_the_same(policy: Policy, folder: Path) -> None:
    engine = TransformersEngine(policy)
    loaded = load_policy(folder)
    assert loaded.stop_ids == policy.stop_ids == (1,)
    assert loaded.pad_id == policy.pad_id == 0
    assert loaded.codec.fingerprint == policy.codec.fingerprint
    assert weights_digest(loaded.model) == weights_digest(policy.model) == weights_digest(folder)
    requests, sampling = [Request([5, 6, 7], 3)], Sampling(1.0, 9)
    first = engine.generate(requests, sampling)[0]
    second = TransformersEngine(loaded).generate(requests, sampling)[0]
    assert first.response_ids.tolist() == second.response_ids.tolist()
    np.testing.assert_allclose(first.logprobs_nats, second.logprobs_nats, atol=1e-6)
    assert "pivotopd" not in (folder / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("shown", [True, False])
def test_no_bar_is_shown_and_no_switch_is_turned(
    policy: Policy, tmp_path: Path, capfd: pytest.CaptureFixture[str], shown: bool
) -> None:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    def hook(factory: Callable[..., object], args: tuple[object, ...], settings: dict[str, object]) -> object:
        return factory(*args, **settings)

    was_hidden, hook_before = are_progress_bars_disabled(), logging.set_tqdm_hook(hook)
    (enable_progress_bars if shown else disable_progress_bars)()
    try:
        assert logging.is_progress_bar_enabled(), "else nothing is tested"
        save_policy(policy, tmp_path)
        load_policy(tmp_path)
        assert capfd.readouterr().err == ""
        assert logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled() is not shown
        with pytest.raises(StorageError):
            save_policy(policy, tmp_path / "config.json")
    finally:
        (disable_progress_bars if was_hidden else enable_progress_bars)()
        assert logging.set_tqdm_hook(hook_before) is hook


def test_bfloat16(folder: Path) -> None:
    loaded = load_policy(folder, "bfloat16")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert weights_digest(loaded.model) != weights_digest(folder)
    done = TransformersEngine(loaded).generate([Request([5, 6], 0), Request([7], 1)], Sampling(1.0, 4))
    assert all(np.isfinite(completion.logprobs_nats).all() for completion in done)


def test_stop_ids_take_the_generation_settings_too() -> None:
    from pivotopd.models.tiny import build_model

    tokenizer = chat_tokenizer()
    model = build_model(SMALL, tokenizer, 0)
    end, extra = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config.eos_token_id = [extra, end]
    assert make_policy(model, tokenizer).stop_ids == tuple(sorted((end, extra)))


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _scribble(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)


def _lose(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})


def _spoil(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 1] = float("inf")
    save_file(tensors, file, metadata={"format": "pt"})


def _edit(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")

    return apply


def _remove(*names: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return apply


def _shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _index(text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    return apply


def _write(name: str, text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    return apply


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (_remove("config.json"), ArtifactError, "no config.json"),
        (_write("config.json", "{"), ArtifactError, "config.json cannot be used"),
        (_edit(model_type="nosuchmodel"), ArtifactError, "config.json cannot be used"),
        (_edit(architectures=["Qwen3ForSequenceClassification"]), ArtifactError, "not a causal language"),
        (
            _edit(model_type="t5", architectures=["T5ForConditionalGeneration"]),
            ArtifactError,
            "not a causal language",
        ),
        (
            _edit(layer_types=["sliding_attention", "full_attention"]),
            ArtifactError,
            "layers of kind sliding_attention",
        ),
        (_remove("tokenizer.json", "tokenizer_config.json"), ArtifactError, "no tokenizer"),
        (_write("tokenizer.json", "{}"), ArtifactError, "tokenizer cannot be read"),
        (_remove("model.safetensors"), ArtifactError, "no safetensors weights"),
        (_shards, ArtifactError, "model-1.safetensors is missing"),
        (_cut, ArtifactError, "weights are damaged"),
        (_scribble, ArtifactError, "weights are damaged"),
        (_lose, ArtifactError, "lack 1 tensors, first model.layers.1.mlp.up_proj.weight"),
        (_edit(intermediate_size=40), ArtifactError, r"has the shape \[.*\], config.json asks for \["),
        (_edit(vocab_size=5), ArtifactError, r"has the shape \[.*\], config.json asks for \[5, "),
        (_index("[1]"), ArtifactError, "index of weights is damaged"),
        (_index('{"weight_map": [1]}'), ArtifactError, "index of weights is damaged"),
        (_index('{"weight_map": {}}'), ArtifactError, "something else than files beside it"),
        (_index('{"weight_map": {"a": "b", "c": 3}}'), ArtifactError, "something else than files beside it"),
        (_index('{"weight_map": {"a": "../b"}}'), ArtifactError, "something else than files beside it"),
        (_spoil, NumericsError, "model.layers.0.mlp.up_proj.weight holds 2 values"),
    ],
)
def test_damage_is_said_in_one_error(
    folder: Path,
    damage: Callable[[Path], None],
    kind: type[PivotError],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(folder)
    with pytest.raises(kind, match=said) as caught:
        load_policy(folder)
    assert str(folder) in str(caught.value.where)
    assert caught.value.mend
    assert capfd.readouterr() == ("", ""), "nothing beside the error"


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such model folder"):
        load_policy(tmp_path / "absent")
    with pytest.raises(ArtifactError, match="no safetensors"):
        weights_digest(tmp_path)


def test_a_logit_scale_is_refused(policy: Policy, tmp_path: Path) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=len(policy.tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        logits_scaling=8.0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        GraniteForCausalLM(config).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ArtifactError, match="changes its logits after the head"):
        load_policy(tmp_path)


def test_a_tokenizer_that_is_too_large(policy: Policy) -> None:
    from pivotopd.models.tiny import build_model, build_tokenizer

    model = build_model(SMALL, build_tokenizer(["a b"]), 0)
    with pytest.raises(ArtifactError, match="model has rows for 260"):
        make_policy(model, policy.tokenizer)


def test_a_file_in_the_way(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot save"):
        save_policy(policy, tmp_path / "file")


def test_digest_is_of_content() -> None:
    first = small_policy().model
    assert weights_digest(first) == weights_digest(small_policy().model)
    before = weights_digest(first)
    first.model.norm.weight.data[0] += 1e-7
    assert weights_digest(first) != before


def test_digest_by_hand(tmp_path: Path) -> None:
    save_file(
        {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor(3, dtype=torch.int64)},
        tmp_path / "model.safetensors",
    )
    expected = hashlib.sha256()
    for head, content in (
        (b'["a", "torch.int64", []]', np.array(3, dtype="<i8").tobytes()),
        (b'["b", "torch.float32", [2]]', np.array([1.0, 2.0], dtype="<f4").tobytes()),
    ):
        expected.update(len(head).to_bytes(8, "big") + head + content)
    assert weights_digest(tmp_path) == expected.hexdigest()
