from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.batch import Lengths, ragged_rows, random_model
from benchmarks.gpu import SMALL, Bench, Device, main, run
from benchmarks.gpu_update import OurStep, PaddedStep, training_flops
from benchmarks.result import Measure


def test_it_runs_small_on_a_cpu(tmp_path: Path) -> None:
    content = run(
        Bench(replace(SMALL, loss_tokens=(64, 128), blocks=1), Device("cpu")), tmp_path / "gpu.json"
    )
    assert content["skipped"] == []
    names = {one["name"] for one in content["measures"]}
    assert {"gpu/loss/time/64", "gpu/update/padded", "gpu/growth/tokens", "gpu/decode/batching"} <= names
    assert json.loads((tmp_path / "gpu.json").read_text())["measures"] == content["measures"]


def test_a_part_without_time_is_named_and_the_file_is_flushed(tmp_path: Path) -> None:
    content = run(Bench(SMALL, Device("cpu")), tmp_path / "gpu.json", limit_s=0.0)
    assert [one["name"] for one in content["skipped"]] == ["loss", "update", "growth", "decode"]


def test_what_was_measured_stays_when_a_part_breaks(tmp_path: Path) -> None:
    class Broken(Bench):
        def loss(self) -> Iterator[Measure]:
            yield Measure(name="first", label="first", value=1, low=1, high=1)
            raise SystemExit("the losses differ")

    content = run(Broken(replace(SMALL, blocks=1), Device("cpu")), tmp_path / "gpu.json")
    assert content["measures"][0]["name"] == "first"
    assert content["skipped"] == [{"name": "loss", "reason": "the losses differ"}]


def test_it_refuses_a_cpu_at_full_size(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(SystemExit, match="--small"):
        main(["--out", str(tmp_path / "gpu.json")])


def test_it_needs_torch_and_transformers_only() -> None:
    code = (
        "import sys, numpy, torch, transformers; before = {*sys.modules}; import benchmarks.gpu;"
        "print(*sorted({name.partition('.')[0] for name in {*sys.modules} - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {"benchmarks", "pivotopd"} <= loaded
    assert not loaded & {"deepspeed", "prefect", "mlflow", "pydantic", "rich", "stages", "pyarrow", "vllm"}


def test_packed_and_padded_steps_have_one_loss_and_count_positions() -> None:
    model = random_model(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=64, vocabulary=300)
    rows = ragged_rows(5, Lengths().shortened(32), 300)
    ours, padded = OurStep(model, rows, 64, "cpu"), PaddedStep(model, rows, 2, "cpu")
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    assert ours.tokens == ours.positions == padded.tokens == sum(lengths)
    assert padded.positions == 5 * max(lengths)
    assert ours.run() == pytest.approx(padded.run(), abs=1e-5)


def test_flops_by_hand() -> None:
    model = random_model(layers=1, hidden=32, heads=4, kv_heads=2, intermediate=64, vocabulary=300)
    (row,) = ragged_rows(1, Lengths().shortened(32), 300)
    tokens, responses = len(row.prompt_ids) + len(row.response_ids), len(row.response_ids)
    body = sum(weight.numel() for weight in model.parameters()) - 300 * 32
    expected = 6 * (body * tokens + 300 * 32 * responses) + 6 * 32 * tokens**2
    assert training_flops(model, [row]) == pytest.approx(expected)
