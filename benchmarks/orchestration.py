"""Engine starts inside the loop, and what orchestration and artifacts take of an iteration.

A training runs as ``pivotopd train`` runs it, with Prefect, in a process of its own. Orchestration is what an
iteration takes beyond its stages' own seconds; artifacts are the stages' phases that read and write. Engines
are counted from the second iteration on, models as well.

``python -m benchmarks.orchestration CONFIG OUT`` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.iteration import Bench, Shape, student_folder
from benchmarks.ratios import bootstrap_interval
from benchmarks.result import Measure
from pivotopd.config_files import dump_config, parse_config, parse_yaml

GATE, AIM = 5.0, 2.0
ARTIFACT_PHASES = ("read", "write")
ITERATIONS = 4
COUNTED = ("engine_starts", "model_loads", "learner_starts", "bytes_written")


@dataclass(frozen=True, slots=True)
class Lap:
    """One iteration of the loop.

    Attributes:
        wall_s: From the end of the stage before it to the end of its last one.
        stages_s: The stages' own seconds.
        artifacts_s: Of these, what reads and writes.
        engine_starts, model_loads, learner_starts: Exact counts.
        bytes_written: Exact count.
    """

    wall_s: float
    stages_s: float
    artifacts_s: float
    engine_starts: int
    model_loads: int
    learner_starts: int
    bytes_written: int

    @property
    def share_percent(self) -> float:
        """Orchestration and artifacts, of the whole."""
        return 100 * (self.wall_s - self.stages_s + self.artifacts_s) / self.wall_s


def measure(*, quick: bool = False) -> list[Measure]:
    """Return engine starts and share."""
    # as many episodes as the paper's iteration has: what does not grow with them weighs what it weighs there
    paper = Shape(tasks=16, group_size=8, chains=64)
    shape = Shape(tasks=2, group_size=2, max_turns=5, chains=2) if quick else paper
    with TemporaryDirectory() as folder:
        laps = _train(Path(folder), shape, 2 if quick else ITERATIONS)
    later = laps[1:]
    shares = [lap.share_percent for lap in later]
    low, high = bootstrap_interval(shares, seed=0)
    starts = max(lap.engine_starts for lap in later)
    counts = {
        "iterations": len(laps),
        "episodes": shape.episodes,
        "turn_limit": shape.max_turns,
        "engine_starts_first_iteration": laps[0].engine_starts,
        "engine_starts_later": starts,
        "model_loads_later": max(lap.model_loads for lap in later),
        "learner_starts_later": max(lap.learner_starts for lap in later),
        "bytes_written": later[-1].bytes_written,
        "seconds": round(float(np.median([lap.wall_s for lap in later])), 3),
        "orchestration_seconds": round(float(np.median([lap.wall_s - lap.stages_s for lap in later])), 3),
        "artifact_seconds": round(float(np.median([lap.artifacts_s for lap in later])), 3),
    }
    return [
        Measure(
            name="orchestration/engine_starts",
            label="engine starts an iteration, after the first",
            value=starts,
            low=starts,
            high=starts,
            unit="",
            better="less",
            gate=0,
            aim=0,
            clock="counts",
            counts=counts,
        ),
        Measure(
            name="orchestration/share",
            label="orchestration and artifacts, of an iteration",
            value=float(np.median(shares)),
            low=low,
            high=high,
            unit="%",
            better="less",
            gate=GATE,
            aim=AIM,
            clock="wall",
            counts=counts,
        ),
    ]


def _train(folder: Path, shape: Shape, iterations: int) -> list[Lap]:
    config = Bench(student_folder()).config(shape, folder / "runs")
    config = config.model_copy(update={"iterations": iterations})
    given, out = folder / "config.yaml", folder / "out.json"
    given.write_text(dump_config(config), encoding="utf-8")
    environment = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_LOGGING_LEVEL": "ERROR"}
    environment["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "180"  # a busy machine needs long
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "benchmarks.orchestration", str(given), str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode or not out.exists():
        raise SystemExit(f"the training ended with {done.returncode}: {done.stderr[-800:]}")
    return [_lap(one) for one in json.loads(out.read_text(encoding="utf-8"))]


def _lap(found: Mapping[str, float]) -> Lap:
    seconds = found["wall_s"], found["stages_s"], found["artifacts_s"]
    return Lap(*seconds, *(int(found[name]) for name in COUNTED))


def _child(given: Path, out: Path) -> None:
    from flows.in_process import run_flow  # noqa: PLC0415 - Prefect, in the child only
    from flows.train import Listener, listen, train  # noqa: PLC0415
    from pivotopd.ledger import Counts  # noqa: PLC0415
    from stages.plan import LOOP  # noqa: PLC0415
    from stages.runner import Done  # noqa: PLC0415

    ended: list[tuple[Done, float]] = []
    listen(Listener(done=lambda done: ended.append((done, time.perf_counter()))))
    config = parse_config(parse_yaml(given.read_text(encoding="utf-8"), where=str(given)), where=str(given))
    run_flow(train, config.model_dump(mode="json"))
    sums: dict[int, dict[str, Any]] = defaultdict(lambda: defaultdict(float))
    before = ended[0][1]
    for done, at in ended:
        iteration, manifest = done.job.iteration, done.artifact.manifest
        if done.job.stage in LOOP and iteration is not None:
            lap, counts = sums[iteration], Counts.of(manifest.counts)
            lap["wall_s"] += at - before
            lap["stages_s"] += sum(manifest.seconds.values())
            lap["artifacts_s"] += sum(manifest.seconds.get(phase, 0.0) for phase in ARTIFACT_PHASES)
            for name in COUNTED:
                lap[name] += getattr(counts, name)
        before = at
    out.write_text(json.dumps([sums[iteration] for iteration in sorted(sums)]), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Train and write what the iterations took."""
    given, out = map(Path, arguments)
    _child(given, out)


if __name__ == "__main__":
    main(sys.argv[1:])
