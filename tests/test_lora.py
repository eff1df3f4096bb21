"""LoRA: what is trained, what is published, and an exact resume on the frozen weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from pivotopd.config import LoraSection
from pivotopd.errors import ConfigError
from pivotopd.learner import Learner
from pivotopd.models.checkpoint import load_policy, weights_digest
from tests.learner_cases import flat, make_rows, policy, section

IDS = torch.arange(3, 40)[None]


def lora(stage: int = 1, dtype: str = "float32") -> object:
    return section(
        zero_stage=stage,
        dtype=dtype,
        learning_rate=1e-2,
        lora=LoraSection(rank=4, targets=("q_proj", "up_proj")),
    )


def test_without_the_library_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="peft") as caught:
        Learner(policy(), lora())  # type: ignore[arg-type]
    assert "pivotopd[lora]" in str(caught.value)


@pytest.mark.parametrize(("stage", "dtype"), [(0, "float32"), (1, "bfloat16"), (3, "float32")])
def test_adapters_train_and_the_merged_policy_is_published(stage: int, dtype: str, tmp_path: Path) -> None:
    begin, made = flat(policy(dtype).model), policy(dtype)
    rows = make_rows(policy(dtype).model)
    with Learner(made, lora(stage, dtype)) as learner:  # type: ignore[arg-type]
        (first,) = learner.update(rows, 1)
        digest = learner.weights_digest()
        learner.save(tmp_path / "first")
        learner.update(rows, 2)
        learner.save(tmp_path / "second")
    assert first.ratio_gap < (1e-5 if dtype == "float32" else 0.2)  # it begins at the very policy
    published = load_policy(tmp_path / "first", dtype).model
    assert digest == weights_digest(tmp_path / "first") == weights_digest(published)
    assert {name for name, _ in published.named_parameters()} == {
        name for name, _ in policy(dtype).model.named_parameters()
    }
    moved = {
        name
        for (name, now), (_, then) in zip(
            published.named_parameters(), policy(dtype).model.named_parameters(), strict=True
        )
        if not torch.equal(now, then)
    }
    assert moved
    assert all("q_proj" in name or "up_proj" in name for name in moved)
    assert not torch.equal(flat(published), begin)
    # a new learner on the initial weights takes the adapters and their moments up
    again = policy(dtype)
    with Learner(again, lora(stage, dtype)) as learner:  # type: ignore[arg-type]
        learner.load(tmp_path / "first")
        assert learner.weights_digest() == digest
        learner.update(rows, 2)
        assert learner.weights_digest() == weights_digest(tmp_path / "second")


def test_the_merged_policy_computes_what_the_adapters_do(tmp_path: Path) -> None:
    made = policy()
    rows = make_rows(made.model)
    with Learner(made, lora()) as learner:  # type: ignore[arg-type]
        learner.update(rows, 1)
        learner.save(tmp_path)
    published = load_policy(tmp_path).model
    with torch.inference_mode():
        torch.testing.assert_close(published(IDS).logits, made.model(IDS).logits, rtol=1e-4, atol=1e-5)


def test_layers_that_the_model_lacks_are_refused() -> None:
    config = section(lora=LoraSection(targets=("no_such_layer",)))
    with pytest.raises(ConfigError, match=r"no_such_layer|target") as caught:
        Learner(policy(), config)
    assert "update.lora.targets" in str(caught.value)
