"""A foreign loader sees a model's files alone, whatever lies beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pivotopd.errors import ArtifactError
from pivotopd.models.model_view import model_alone


def files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text(name)
    return folder


def seen(folder: Path) -> set[str]:
    with model_alone(folder) as alone:
        assert all(file.read_bytes() == (folder / file.name).read_bytes() for file in alone.iterdir())
        names = {file.name for file in alone.iterdir()}
    assert not alone.exists()
    return names


def test_an_optimizer_beside_the_weights_is_not_seen(tmp_path: Path) -> None:
    files(tmp_path, "config.json", "tokenizer.json", "model.safetensors", "optimizer.safetensors")
    assert seen(tmp_path) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert len(list(tmp_path.iterdir())) == 4


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    files(tmp_path, "config.json", "a.safetensors", "b.safetensors", "optimizer.safetensors")
    index = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert seen(tmp_path) == {"config.json", "a.safetensors", "b.safetensors", "model.safetensors.index.json"}


def test_an_index_that_is_not_read_is_not_seen(tmp_path: Path) -> None:
    """One file goes before an index here; vLLM would leave it out, where an index does not name it."""
    files(tmp_path, "config.json", "model.safetensors", "model.safetensors.index.json")
    assert seen(tmp_path) == {"config.json", "model.safetensors"}


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no safetensors weights"), model_alone(tmp_path):
        pass
