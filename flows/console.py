"""What a person sees of a run: bars on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from prefect.settings import PREFECT_API_URL
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from pivotopd.config import RunConfig
from pivotopd.tracking import tracking_uri, where_to_look
from stages.metrics import metrics_of
from stages.runner import Done, describe

SHOWN_METRICS = {
    "warm_start": ("success", "recovery", "admissible", "hint_obeyed"),
    "skills": ("entries", "entries_of_won", "success"),
    "rollout": ("success", "turns_mean"),
    "label": ("pivotal", "pivotal_per_episode"),
    "recover": ("rows", "hint_obeyed_share"),
    "update": ("loss", "kl_nats", "gradient_norm"),
    "evaluate": ("success", "recovery_rate", "turns_mean"),
}
"""Metrics of each stage in its one line."""

QUIET_S = 15.0
"""Seconds between progress lines where there is no terminal."""

WIDTH = 110


def warnings_of(stage: str, notes: Mapping[str, str], metrics: Mapping[str, float]) -> list[str]:
    """Return what of a finished stage a person should not overlook, each without its ``warning:``."""
    found = []
    if notes.get("falls_short"):
        found.append(f"the start falls short: {notes['falls_short']}")
    unread = metrics.get("label/unread_share", 0.0) if stage == "label" else 0.0
    if unread > 0:
        found.append(
            f"{unread:.0%} of the episodes train without the teacher's signal, since no reply could be used; "
            "`pivotopd inspect RUN --episode ID` shows the reason"
        )
    return found


class Watcher:
    """Shows a run while it goes on, and sums it up.

    Args:
        config: The run's configuration.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
        self._bars = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar: TaskID | None = None
        self._what = ""
        self._said = self._started = time.monotonic()
        self._evaluations: list[Done] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._jobs: Counter[str] = Counter()
        self._cached: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._console.print(
            f"run {self._config.name}: {self._config.method.name}, seed {self._config.seed}, "
            f"{self._config.iterations} iterations, under {self._config.root}",
            soft_wrap=True,  # an address is to be copied
        )
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar; without a terminal, print a line now and then."""
        if self._console.is_terminal:
            if self._bar is None or what != self._what:
                if self._bar is not None:
                    self._bars.remove_task(self._bar)
                self._bar, self._what = self._bars.add_task(what, total=total), what
            self._bars.update(self._bar, completed=done, total=total)
        elif time.monotonic() - self._said > QUIET_S:
            self._said = time.monotonic()
            self._console.print(f"  {what}: {done} of {total}")

    def done(self, done: Done) -> None:
        """Print a finished job's line and add it to the sums."""
        stage, manifest = done.job.stage, done.artifact.manifest
        metrics = metrics_of(done.artifact)
        if stage == "evaluate":
            self._evaluations.append(done)
        spent = sum(manifest.seconds.values())
        self._jobs[stage] += 1
        self._cached[stage] += done.cached
        self._seconds[stage] += 0.0 if done.cached else spent
        left_out = {name for name in manifest.varying if not name.startswith("teacher_")}
        self._counts[stage].update({k: v for k, v in manifest.counts.items() if k not in left_out})
        shown = [
            f"{name} {metrics[f'{stage}/{name}']:.3g}"
            for name in SHOWN_METRICS[stage]
            if f"{stage}/{name}" in metrics
        ]
        how = "cached" if done.cached else f"{spent:.1f} s"
        self._console.print(f"{describe(done.job):16} {how:>8}  {', '.join(shown)}")
        for warning in warnings_of(stage, manifest.notes, metrics):
            self._console.print(f"  warning: {warning}")
        self._said = time.monotonic()

    def show_result(self) -> None:
        """Print the tables of the end: before and after, stages, where everything is."""
        if self._evaluations:
            self._console.print(self._before_and_after())
        self._console.print(self._stages())
        root = self._config.root
        self._console.print(f"whole run: {time.monotonic() - self._started:.0f} s")
        self._console.print(f"artifacts: {root.rstrip('/')}/{self._config.name}", soft_wrap=True)
        self._console.print(
            f"           pivotopd inspect {root.rstrip('/')}/{self._config.name}", soft_wrap=True
        )
        if self._config.tracking.enabled:
            there = where_to_look(tracking_uri(self._config.tracking.uri, root))
            self._console.print(f"MLflow:    {there}", soft_wrap=True)
        server = PREFECT_API_URL.value()
        page = server.rstrip("/").removesuffix("/api") if server else ""
        self._console.print(
            f"Prefect:   {page or 'prefect server start    (then open the address that it prints)'}",
            soft_wrap=True,
        )

    def _before_and_after(self) -> Table:
        first, last = self._evaluations[0], self._evaluations[-1]
        before, after = metrics_of(first.artifact), metrics_of(last.artifact)
        table = Table(title="held-out games", title_justify="left")
        for name in ("", "before", "after"):
            table.add_column(name, justify="left" if not name else "right")
        rows = {
            "success": "success",
            "recovery rate": "recovery_rate",
            "turns an episode": "turns_mean",
            "admissible actions": "admissible_share",
            **{
                f"success, {name.rsplit('/', 1)[1]}": name.removeprefix("evaluate/")
                for name in sorted(before)
                if name.startswith("evaluate/success/")
            },
        }
        for label, name in rows.items():
            cells = [
                f"{one[f'evaluate/{name}']:.3f}" if f"evaluate/{name}" in one else "-"
                for one in (before, after)
            ]
            table.add_row(label, *cells)
        mistakes = int(before.get("evaluate/mistakes", 0))
        table.caption = (
            f"{int(before['evaluate/episodes'])} episodes; recovery from {mistakes} recorded mistakes"
        )
        return table

    def _stages(self) -> Table:
        table = Table(title="stages", title_justify="left")
        for name in ("stage", "runs", "cached", "seconds"):
            table.add_column(name, justify="left" if name == "stage" else "right")
        table.add_column("exact counts, summed")
        for stage, runs in self._jobs.items():
            counts = ", ".join(f"{name} {value:,}" for name, value in self._counts[stage].items() if value)
            table.add_row(stage, str(runs), str(self._cached[stage]), f"{self._seconds[stage]:.1f}", counts)
        return table
