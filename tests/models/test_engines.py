"""Which engine a section asks for, where vLLM is missing and where it is there and knows few models."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pydantic import ValidationError

from pivotopd.config import RolloutSection
from pivotopd.engine_section import CUTTING, EngineSection
from pivotopd.errors import ConfigError
from pivotopd.models.checkpoint import save_policy
from pivotopd.models.engines import check_engine_section, vllm_runs
from tests.models.conftest import small_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "model"
    save_policy(small_policy(), folder)
    return folder


@pytest.fixture
def vllm_knows(model: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Architectures that the vLLM of a test has code for: a registry in its place, so that none is needed."""
    known = list(json.loads((model / "config.json").read_text())["architectures"])
    fake = ModuleType("vllm")
    fake.__spec__ = ModuleSpec("vllm", None)
    fake.ModelRegistry = SimpleNamespace(get_supported_archs=lambda: set(known))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return known


@pytest.mark.usefixtures("vllm_knows")
def test_the_engine_is_the_one_that_is_asked_for(model: Path) -> None:
    assert vllm_runs(EngineSection(kind="vllm"), model)
    assert vllm_runs(EngineSection(kind="vllm", fallback="transformers"), model), "no reason to fall back"
    assert not vllm_runs(EngineSection(), model)
    assert not vllm_runs(EngineSection(fallback="transformers"), model)


def test_a_model_that_vllm_does_not_know_is_refused_by_name(model: Path, vllm_knows: list[str]) -> None:
    (name,) = vllm_knows
    vllm_knows[:] = ["AnotherForCausalLM"]
    with pytest.raises(ConfigError, match=f"vLLM does not know the model: {name}") as caught:
        vllm_runs(EngineSection(kind="vllm"), model)
    assert caught.value.exit_code == 2
    assert caught.value.where == str(model)
    assert "engine.fallback=transformers" in str(caught.value.mend)


def test_it_falls_back_only_where_that_is_asked_for(model: Path, vllm_knows: list[str]) -> None:
    vllm_knows[:] = []
    assert not vllm_runs(EngineSection(kind="vllm", fallback="transformers"), model)
    with pytest.raises(ConfigError, match="does not know"):
        vllm_runs(EngineSection(kind="vllm", fallback="none"), model)


@pytest.mark.parametrize("fallback", ["none", "transformers"])
def test_a_missing_vllm_is_refused_whatever_may_stand_in(
    fallback: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    section = EngineSection.model_validate({"kind": "vllm", "fallback": fallback})
    for refused in (lambda: check_engine_section(section), lambda: vllm_runs(section, model)):
        with pytest.raises(ConfigError, match="vLLM is not installed") as caught:
            refused()
        assert caught.value.where == "engine.kind"
        assert "pip install 'pivotopd[vllm]'" in str(caught.value.mend)
        assert "engine transformers" in str(caught.value.mend)
    check_engine_section(EngineSection())


@pytest.mark.usefixtures("vllm_knows")
@pytest.mark.parametrize("kind", ["vllm", "transformers"])
def test_an_engine_in_the_run_is_one_copy(model: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match="not 2") as caught:
        vllm_runs(EngineSection.model_validate({"kind": kind, "data_parallel": 2}), model)
    assert caught.value.where == "engine.data_parallel"
    check_engine_section(EngineSection(kind="vllm", tensor_parallel=2))


@pytest.mark.parametrize("cut", sorted(CUTTING))
def test_no_way_to_sample_that_cuts_the_distribution_is_taken(cut: str) -> None:
    with pytest.raises(ValidationError, match=rf"{cut}: rollouts are drawn from the whole distribution"):
        RolloutSection.model_validate({cut: 0.9})
    with pytest.raises(ValidationError):
        EngineSection.model_validate({cut: 0.9})


def test_what_an_engine_draws_is_read_and_its_size_is_not() -> None:
    sizes = {"gpu_memory_share": 0.7, "tensor_parallel": 2, "concurrency": 3, "parity_rows": 2}
    assert EngineSection.model_validate(sizes).reads == EngineSection().reads
    assert EngineSection(kind="vllm").reads != EngineSection().reads
    assert set(EngineSection.model_fields) > EngineSection.RUNNING
