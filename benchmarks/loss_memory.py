"""Peak memory of the loss, chunked against naive, at the vocabulary of real models.

Each side runs in a process of its own. The peak is that of the resident set, above what the process holds
with weights and gradients in place; one chunk of work was done before, so that libraries are loaded.

``python -m benchmarks.loss_memory SIDE TOKENS VOCABULARY HIDDEN`` is one such process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil  # type: ignore[import-untyped]  # ships no types

from benchmarks.losses import LossCase, Side, backward, gradient_norm
from benchmarks.ratios import cpu_seconds, growth
from benchmarks.result import Measure, Skipped

GATE, AIM = 8.0, 20.0
TOKENS, VOCABULARY, HIDDEN = 4096, 151_936, 256
TOLERANCE = 1e-4
SIDES: tuple[Side, Side] = ("chunked", "naive")


@dataclass(frozen=True, slots=True)
class Peak:
    """What one process found.

    Attributes:
        peak_mib: Peak above weights and gradients.
        loss: The loss.
        gradient_norm: Norm of its gradient.
        cpu_s: CPU seconds of forward and backward.
    """

    peak_mib: float
    loss: float
    gradient_norm: float
    cpu_s: float


def measure(*, quick: bool = False) -> list[Measure | Skipped]:
    """Return the ratio of the peaks, and how ours grows with T."""
    tokens, vocabulary, hidden = (512, 20_000, 64) if quick else (TOKENS, VOCABULARY, HIDDEN)
    needed_gib = 6 * 4 * tokens * vocabulary / 2**30
    free_gib = psutil.virtual_memory().available / 2**30  # what files only cache counts as free
    if free_gib < needed_gib:
        reason = f"the naive loss needs {needed_gib:.0f} GiB of memory, {free_gib:.0f} GiB are free"
        return [Skipped("loss/memory", reason)]
    chunked, naive = (_child(side, tokens, vocabulary, hidden) for side in SIDES)
    check_equal(chunked, naive)
    ratio = naive.peak_mib / chunked.peak_mib
    shorter = [tokens // 4]
    ours = [*(_child("chunked", one, vocabulary, hidden).peak_mib for one in shorter), chunked.peak_mib]
    slope = growth([*shorter, tokens], ours)
    return [
        Measure(
            name="loss/memory",
            label=f"peak memory of the loss, naive over ours, T = {tokens:,}, V = {vocabulary:,}",
            value=ratio,
            low=ratio,
            high=ratio,
            gate=GATE,
            aim=AIM,
            clock="counts",
            counts={
                "tokens": tokens,
                "vocabulary": vocabulary,
                "hidden": hidden,
                "our_peak_mib": round(chunked.peak_mib, 1),
                "naive_peak_mib": round(naive.peak_mib, 1),
                "logits_mib": round(4 * tokens * vocabulary / 2**20, 1),
                "weights_mib": round(4 * vocabulary * hidden / 2**20, 1),
                "our_loss": chunked.loss,
                "naive_loss": naive.loss,
                "our_gradient_norm": chunked.gradient_norm,
                "naive_gradient_norm": naive.gradient_norm,
                "our_cpu_s": round(chunked.cpu_s, 2),
                "naive_cpu_s": round(naive.cpu_s, 2),
                "time_ratio": round(chunked.cpu_s / naive.cpu_s, 3),
            },
        ),
        Measure(
            name="loss/memory/growth",
            label="growth of the loss's peak memory with T",
            value=slope,
            low=slope,
            high=slope,
            unit="",
            better="less",
            clock="counts",
            counts={
                f"peak_mib_at_{one}": round(mib, 1) for one, mib in zip([*shorter, tokens], ours, strict=True)
            },
            note="exponent; 0 is flat",
        ),
    ]


def check_equal(ours: Peak, naive: Peak) -> None:
    """Refuse to compare the memory of two different results.

    Raises:
        SystemExit: Loss or gradient differ.
    """
    gaps = abs(ours.loss - naive.loss), abs(ours.gradient_norm / naive.gradient_norm - 1)
    if not max(gaps) <= TOLERANCE:
        raise SystemExit(f"Loss or gradient differ, nothing was compared: {ours} and {naive}")


def _child(side: Side, tokens: int, vocabulary: int, hidden: int) -> Peak:
    command = [sys.executable, "-m", "benchmarks.loss_memory", side, *map(str, (tokens, vocabulary, hidden))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"the {side} loss of {tokens} tokens ended with {done.returncode}: {done.stderr[-800:]}"
        )
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def one_process(side: Side, case: LossCase) -> Peak:
    """Measure one side in this process."""
    model = case.model()
    backward(model, LossCase(tokens=8, vocabulary=case.vocabulary, hidden=case.hidden).batch(), "chunked")
    model.zero_grad(set_to_none=False)
    batch = case.batch()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets the peak back to what is held now
    before, cpu = _status_mib("VmRSS"), cpu_seconds()
    loss = backward(model, batch, side)
    return Peak(_status_mib("VmHWM") - before, loss, gradient_norm(model), cpu_seconds() - cpu)


def _status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {name}: peak memory cannot be measured here")


def main(arguments: Sequence[str]) -> None:
    """Measure one side and print a line of JSON."""
    side, tokens, vocabulary, hidden = arguments
    case = LossCase(tokens=int(tokens), vocabulary=int(vocabulary), hidden=int(hidden))
    peak = one_process(cast("Side", side), case)
    print(json.dumps({name: getattr(peak, name) for name in Peak.__dataclass_fields__}))


if __name__ == "__main__":
    main(sys.argv[1:])
