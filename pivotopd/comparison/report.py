"""The report of a comparison as files: figures as JSON, tables as Markdown."""

from __future__ import annotations

import json

from pivotopd.comparison.results import Comparison, as_json
from pivotopd.comparison.tables import tables_of


def report_files(comparison: Comparison) -> dict[str, bytes]:
    """Return the report's files by name."""
    results = json.dumps(as_json(comparison.results()), indent=1, allow_nan=False) + "\n"
    return {"results.json": results.encode(), "results.md": markdown(comparison).encode()}


def markdown(comparison: Comparison) -> str:
    """Return all tables in Markdown."""
    head = f"# {comparison.experiment.name}\n"
    if comparison.missing:
        listed = "\n".join(f"* {run.arm}, seed {run.seed}: {run.state}" for run in comparison.missing)
        head += f"\n**Missing:**\n\n{listed}\n"
    return "\n".join([head, *(table.markdown() for table in tables_of(comparison))])
