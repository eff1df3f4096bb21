"""The GPU's share of the ratios, in one call made for seven minutes; a part that finds no time is left out.

``python -m benchmarks.gpu --out FILE [--limit 420] [--small]``

Needs torch and transformers only: no vLLM, no DeepSpeed, no Prefect, no game. It measures what a GPU
decides: the loss's memory and time at a real vocabulary, the update's tokens a second and MFU on a model of
Qwen3-1.7B's shape with random weights, its growth with tokens, and decoding of 1 against 128 sequences. The
file is written again after each part. ``--small`` shrinks everything, for a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.batch import Lengths, RaggedRow, ragged_rows, random_model
from benchmarks.gpu_decode import decode_seconds
from benchmarks.gpu_update import OurStep, PaddedStep, Step, training_flops
from benchmarks.losses import LossCase, Side, backward, gradient_norm
from benchmarks.ratios import Cost, abba, growth, machine, speedup, versions
from benchmarks.result import Measure, Skipped

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

LIMIT_S = 420.0
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 peak by a part of the device's name."""
Found = Iterator[Measure | Skipped]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large everything is.

    Attributes:
        vocabulary, hidden, layers, heads, kv_heads, head_dim, intermediate: The update's model.
        loss_tokens: T of the loss, from small to large.
        loss_hidden: H of the loss.
        rows: Turns of an update.
        lengths: How long they are.
        budget: Most positions of our micro-batch.
        micro_rows: Rows of the padded one.
        decode: Sequences that decode together.
        decode_tokens: Tokens that each writes.
        blocks: ABBA blocks.
    """

    vocabulary: int = 151_936
    hidden: int = 2048
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 6144
    loss_tokens: tuple[int, ...] = (1024, 2048, 4096, 16_384)
    loss_hidden: int = 2048
    rows: int = 64
    lengths: Lengths = field(default_factory=Lengths)
    budget: int = 16_384
    micro_rows: int = 8
    decode: tuple[int, ...] = (1, 128)
    decode_tokens: int = 64
    blocks: int = 5


SMALL = Size(
    vocabulary=2048,
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=128,
    loss_tokens=(128, 256, 512),
    loss_hidden=32,
    rows=8,
    lengths=Lengths().shortened(16),
    budget=512,
    micro_rows=4,
    decode=(1, 4),
    decode_tokens=6,
    blocks=2,
)


@dataclass
class Device:
    """Where it runs: time and memory, as the device tells them."""

    name: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")

    @property
    def is_gpu(self) -> bool:
        """Whether there is one."""
        return self.name == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Weights and computation."""
        return torch.bfloat16 if self.is_gpu else torch.float32

    @property
    def label(self) -> str:
        """Its name."""
        return torch.cuda.get_device_name() if self.is_gpu else "cpu"

    def settle(self) -> None:
        """Wait until all work is done."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def peak_mib(self, work: Callable[[], Any]) -> float:
        """Return the peak of the memory that some work allocates, above what was there; 0 on a CPU."""
        if not self.is_gpu:
            work()
            return 0.0
        self.settle()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        self.settle()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def timed(self, work: Callable[[], int]) -> Cost:
        """Run some work; the CPU's seconds are the wall's, since a device does it."""
        self.settle()
        start = time.perf_counter()
        units = work()
        self.settle()
        wall = time.perf_counter() - start
        return Cost(units, wall, wall)

    @property
    def peak_flops(self) -> float | None:
        """Its peak in bfloat16, where it is known."""
        return next((peak for name, peak in PEAK_FLOPS.items() if name in self.label), None)


@dataclass
class Bench:
    """All parts.

    Args:
        size: How large.
        device: Where.
    """

    size: Size
    device: Device

    @property
    def parts(self) -> dict[str, Callable[[], Found]]:
        """Name to part, the most wanted first."""
        return {
            "loss": self.loss,
            "update": self.update,
            "growth": self.growth,
            "decode": self.decode,
        }

    def loss(self) -> Found:
        """Chunked against naive loss: memory where the device tells it, time, growth with T."""
        peaks: dict[int, float] = {}
        for tokens in self.size.loss_tokens:
            case = LossCase(
                tokens=tokens,
                vocabulary=self.size.vocabulary,
                hidden=self.size.loss_hidden,
                device=self.device.name,
                dtype=self.device.dtype,
            )
            model, batch = case.model(), case.batch()

            def run(side: Side, model: Qwen3ForCausalLM = model, batch: Any = batch) -> int:
                model.zero_grad(set_to_none=False)
                backward(model, batch, side)
                return 1

            results, memory = [], {}
            for side in ("chunked", "naive"):
                run(side)
                memory[side] = self.device.peak_mib(lambda side=side: run(side))  # type: ignore[misc]
                model.zero_grad(set_to_none=False)
                results.append((backward(model, batch, side), gradient_norm(model)))
            gap = max(abs(results[0][0] - results[1][0]), abs(results[0][1] / results[1][1] - 1))
            bound = 1e-4 if self.device.dtype == torch.float32 else 2e-2
            if not gap <= bound:
                raise SystemExit(f"loss or gradient differ at T = {tokens}: {results}")
            peaks[tokens] = memory["chunked"]
            blocks = abba(
                lambda: self.device.timed(lambda: run("chunked")),
                lambda: self.device.timed(lambda: run("naive")),
                self.size.blocks,
            )
            faster = speedup(blocks)
            counts = {"tokens": tokens, "our_peak_mib": memory["chunked"], "naive_peak_mib": memory["naive"]}
            yield Measure(
                name=f"gpu/loss/time/{tokens}",
                label=f"naive loss's time over ours, T = {tokens:,}",
                value=faster.median,
                low=faster.low,
                high=faster.high,
                clock="wall",
                counts=counts | {"gap": gap},
            )
            if self.device.is_gpu:
                ratio = memory["naive"] / memory["chunked"]
                yield _exact(
                    f"gpu/loss/memory/{tokens}", f"naive loss's peak over ours, T = {tokens:,}", ratio, 8.0
                )
            del model, batch
        if self.device.is_gpu:
            value = growth(list(peaks), list(peaks.values()))
            yield _exact("gpu/loss/growth", "growth of our peak with T", value, None, unit="", better="less")

    def _model(self) -> Qwen3ForCausalLM:
        size = self.size
        return random_model(
            layers=size.layers,
            hidden=size.hidden,
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            intermediate=size.intermediate,
            vocabulary=size.vocabulary,
            device=self.device.name,
            dtype=self.device.dtype,
        )

    def _rows(self, count: int) -> list[RaggedRow]:
        return ragged_rows(count, self.size.lengths, self.size.vocabulary)

    def update(self) -> Found:
        """Our update's forward and backward against a padded one with all logits: tokens a second, MFU."""
        rows, model = self._rows(self.size.rows), self._model()
        ours: Step = OurStep(model, rows, self.size.budget, self.device.name)
        padded: Step = PaddedStep(model, rows, self.size.micro_rows, self.device.name)
        losses = ours.run(), padded.run()
        bound = 1e-4 if self.device.dtype == torch.float32 else 2e-2
        if not abs(losses[0] - losses[1]) <= bound:
            raise SystemExit(f"the losses differ, nothing was measured: {losses}")
        memory = [self.device.peak_mib(step.run) for step in (ours, padded)]
        blocks = abba(
            lambda: self.device.timed(lambda: ours.tokens if ours.run() is not None else 0),
            lambda: self.device.timed(lambda: padded.tokens if padded.run() is not None else 0),
            self.size.blocks,
        )
        faster = speedup(blocks)
        total = sum((block.a for block in blocks[1:]), blocks[0].a)
        counts = {
            "rows": len(rows),
            "tokens": ours.tokens,
            "our_positions": ours.positions,
            "padded_positions": padded.positions,
            "our_peak_mib": round(memory[0], 1),
            "padded_peak_mib": round(memory[1], 1),
            "our_loss": losses[0],
            "padded_loss": losses[1],
            "tokens_per_s": round(total.units / total.wall_s),
        }
        yield Measure(
            name="gpu/update/padded",
            label="update tokens/s against padded rows with all logits",
            value=faster.median,
            low=faster.low,
            high=faster.high,
            gate=1.8 if self.device.is_gpu else None,
            aim=3.0 if self.device.is_gpu else None,
            clock="wall",
            counts=counts,
        )
        if self.device.peak_flops is not None:
            flops = training_flops(model, rows) * total.units / ours.tokens
            value = 100 * flops / total.wall_s / self.device.peak_flops
            yield _exact("gpu/update/mfu", "MFU of our update", value, 35.0, unit="%")

    def growth(self) -> Found:
        """How the update's time grows with the rows."""
        model, counts = self._model(), [self.size.rows // 4, self.size.rows // 2, self.size.rows]
        sizes, seconds = [], []
        for count in counts:
            step = OurStep(model, self._rows(count), self.size.budget, self.device.name)
            step.run()
            sizes.append(step.tokens)
            costs = [self.device.timed(lambda step=step: int(step.run() * 0) + 1) for _ in range(3)]  # type: ignore[misc]
            seconds.append(min(cost.wall_s for cost in costs))
        value = growth(sizes, seconds)
        yield _exact(
            "gpu/growth/tokens", "growth of the update's time with tokens", value, 1.1, unit="", better="less"
        )

    def decode(self) -> Found:
        """Seconds a token, for one sequence and for many."""
        model = self._model()
        found = {}
        for count in self.size.decode:
            found[count] = decode_seconds(
                model, count, self.size.decode_tokens, self.size.lengths.prompt, self.device
            )
            yield _exact(
                f"gpu/decode/{count}",
                f"decode, {count} sequences, a token",
                1e3 * found[count],
                None,
                unit="ms",
            )
        few, many = self.size.decode[0], self.size.decode[-1]
        yield _exact(
            "gpu/decode/batching",
            f"tokens/s of {many} sequences over {few}",
            many * found[few] / (few * found[many]),
            None,
        )


def _exact(
    name: str, label: str, value: float, gate: float | None, *, unit: str = "x", better: Any = "more"
) -> Measure:
    return Measure(
        name=name,
        label=label,
        value=value,
        low=value,
        high=value,
        gate=gate,
        unit=unit,
        better=better,
        clock="wall",
    )


def run(bench: Bench, out: Path, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run the parts while there is time; write the file after each value.

    Args:
        bench: The parts.
        out: The file.
        limit_s: No part begins after 70 % of this, so that the last one can end.
    """
    start = time.perf_counter()
    content: dict[str, Any] = {
        "benchmark": "gpu",
        "device": bench.device.label,
        "machine": machine(),
        "versions": versions(["torch", "transformers", "numpy"]),
        "linear_cross_entropy": hasattr(torch.nn.functional, "linear_cross_entropy"),
        "measures": [],
        "skipped": [],
        "seconds": {},
    }
    _flush(content, out)
    for name, part in bench.parts.items():
        began = time.perf_counter()
        if began - start > 0.7 * limit_s:
            content["skipped"].append({"name": name, "reason": f"no time was left of {limit_s:.0f} s"})
            continue
        try:
            for one in part():
                content["measures"].append(one.as_json() if isinstance(one, Measure) else vars(one))
                _flush(content, out)
        except (SystemExit, torch.OutOfMemoryError) as error:
            content["skipped"].append({"name": name, "reason": str(error)[:500]})
        content["seconds"][name] = round(time.perf_counter() - began, 1)
        if bench.device.is_gpu:
            torch.cuda.empty_cache()
        _flush(content, out)
    return content


def _flush(content: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and print the values as lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds in all")
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a CPU")
    options = parser.parse_args(arguments)
    device = Device()
    if not device.is_gpu and not options.small:
        raise SystemExit("no GPU is here; --small runs tiny sizes on the CPU")
    content = run(Bench(SMALL if options.small else Size(), device), options.out, options.limit)
    for one in content["measures"]:
        print(f"{one['label']}: {one['value']:.4g} [{one['low']:.4g}, {one['high']:.4g}] {one['unit']}")
    for one in content["skipped"]:
        print(f"NOT RUN {one['name']}: {one['reason']}")
    spent = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in content["seconds"].items())
    print(f"on {content['device']}; {spent}; written: {options.out}")


if __name__ == "__main__":
    main()
