"""What Prefect's page of a flow run shows of a run: a table an iteration, links, and reports.

Prefect keeps every version of an artifact's key, so the page of a key shows all iterations of a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.console import SHOWN_METRICS
from pivotopd.tracking import Tracker, tracking_uri, where_to_look
from stages.metrics import metrics_of
from stages.runner import Done, describe
from stages.work import Work


def key_of(name: str, kind: str) -> str:
    """Return an artifact's key: Prefect takes lowercase letters, digits and dashes."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{slug}-{kind}" if slug else kind


class Board:
    """Collects the finished stages of a run and shows them.

    Args:
        work: The run.
        tracker: Where its metrics go.
    """

    def __init__(self, work: Work, tracker: Tracker) -> None:
        self._work = work
        self._tracker = tracker
        self._finished: list[Done] = []

    def add(self, done: Done) -> None:
        """Take a finished stage; an update ends its iteration, whose table is then shown."""
        self._finished.append(done)
        if done.job.stage == "update":
            self.show()

    def show(self) -> None:
        """Show what has finished since the last time, if anything has."""
        if not self._finished:
            return
        name = self._work.config.name or self._work.layout.run
        last = describe(self._finished[-1].job)
        create_table_artifact(
            table=rows_of(self._finished), key=key_of(name, "metrics"), description=f"{name}, up to {last}"
        )
        create_markdown_artifact(
            markdown=self._links(), key=key_of(name, "links"), description=f"{name}: where everything is"
        )
        self._finished.clear()

    def _links(self) -> str:
        config, layout = self._work.config, self._work.layout
        lines = [f"**{describe(self._finished[-1].job)}** of `{layout.uri}`", ""]
        if config.tracking.enabled:
            page = self._tracker.page()
            there = where_to_look(tracking_uri(config.tracking.uri, config.root))
            shown = f"[this run]({page})" if page else f"`{there}`"
            lines.append(f"* MLflow: {shown}")
        lines += [
            f"* Report: `pivotopd inspect {layout.uri}`",
            *(f"* {describe(done.job)}: `{done.artifact.uri}`" for done in self._finished),
        ]
        return "\n".join(lines) + "\n"


def rows_of(finished: Sequence[Done]) -> list[dict[str, Any]]:
    """Return a row for each main metric of finished stages, with the stage's seconds and its digest."""
    rows = []
    for done in finished:
        stage, metrics = done.job.stage, metrics_of(done.artifact)
        spent = "cached" if done.cached else f"{sum(done.artifact.manifest.seconds.values()):.1f} s"
        row = {"stage": describe(done.job), "took": spent, "digest": done.artifact.digest[:12]}
        named = [(name, metrics.get(f"{stage}/{name}")) for name in SHOWN_METRICS.get(stage, ())]
        shown = [(name, value) for name, value in named if value is not None]
        rows += [row | {"metric": name, "value": f"{value:.4g}"} for name, value in shown] or [
            row | {"metric": "", "value": ""}
        ]
    return rows


def show_report(name: str, markdown: str) -> None:
    """Show a report as it is written."""
    create_markdown_artifact(markdown=markdown, key=key_of(name, "report"), description=f"report of {name}")
