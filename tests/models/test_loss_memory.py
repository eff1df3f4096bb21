"""Peak memory of the log-probabilities and their gradient, against the whole matrix, in new processes."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT

SCRIPT = """
import pathlib, sys
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from pivotopd.models.base import ScoreRequest
from pivotopd.models.batching import pack_rows
from pivotopd.models.logprobs import response_logprobs

way, tokens, vocabulary, chunk = sys.argv[1], *map(int, sys.argv[2:])
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=vocabulary, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, intermediate_size=32))
batch = pack_rows([ScoreRequest([1], torch.randint(0, vocabulary, (tokens,)).tolist())], [0])

def naive(count):
    logits = model(input_ids=batch.input_ids[:, :count + 1]).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, batch.targets[:count, None])

def held(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

naive(2).sum().backward()  # libraries and the weights' gradients are there before the first measure
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
before = held("VmRSS:")
value = naive(tokens) if way == "naive" else response_logprobs(model, batch, chunk or None)
value.sum().backward()
print(held("VmHWM:") - before)
"""


def peak_mib(way: str, tokens: int, vocabulary: int, chunk: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, way, str(tokens), str(vocabulary), str(chunk)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout)


def test_the_peak_is_far_below_that_of_the_whole_matrix() -> None:
    tokens, vocabulary = 4096, 16_384
    matrix = tokens * vocabulary * 4 / 2**20
    naive, chunked = (peak_mib(way, tokens, vocabulary, 128) for way in ("naive", "chunked"))
    assert naive > 2 * matrix  # logits and log-probabilities: the probe sees them
    assert chunked < naive / 8
