"""The report of a comparison as files: figures as JSON, tables as Markdown, and one page of all."""

from __future__ import annotations

import base64
import json

from jinja2 import Environment, PackageLoader, StrictUndefined

from pivotopd.comparison.experiment import START, Experiment
from pivotopd.comparison.plots import Plot, plots_of
from pivotopd.comparison.results import Comparison, as_json
from pivotopd.comparison.tables import Table, tables_of

PAGE = "report.html"


def report_files(comparison: Comparison) -> dict[str, bytes]:
    """Return the report's files by name: results.json, results.md, report.html and the figures."""
    results = json.dumps(as_json(comparison.results()), indent=1, allow_nan=False) + "\n"
    tables, plots = tables_of(comparison), plots_of(comparison)
    return {
        "results.json": results.encode(),
        "results.md": _markdown(comparison, tables, plots).encode(),
        PAGE: _page(comparison, tables, plots).encode(),
        **{plot.name: plot.png for plot in plots},
    }


def tables_as_markdown(comparison: Comparison) -> str:
    """Return title, missing runs and all tables in Markdown."""
    return _tables(comparison, tables_of(comparison))


def _tables(comparison: Comparison, tables: list[Table]) -> str:
    head = f"# {comparison.experiment.name}\n"
    if comparison.missing:
        listed = "\n".join(f"* {run.arm}, seed {run.seed}: {run.state}" for run in comparison.missing)
        head += f"\n**Missing:**\n\n{listed}\n"
    return "\n".join([head, *(table.markdown() for table in tables)])


def _markdown(comparison: Comparison, tables: list[Table], plots: list[Plot]) -> str:
    """Return all tables in Markdown, with links to the figures beside it."""
    images = [f"![{plot.title}: {plot.text}]({plot.name})\n" for plot in plots]
    return "\n".join([_tables(comparison, tables), *images])


def _page(comparison: Comparison, tables: list[Table], plots: list[Plot]) -> str:
    """Return a page that needs nothing else: images inside, no script, no request."""
    loader = PackageLoader("pivotopd.comparison", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    images = [(plot, base64.b64encode(plot.png).decode()) for plot in plots]
    return environment.get_template("report.html.j2").render(
        experiment=comparison.experiment,
        reference=_reference(comparison.experiment),
        missing=comparison.missing,
        runs=len(comparison.runs),
        measured=_measured(comparison),
        tables=tables,
        images=images,
        arms=[(arm, list(settings)) for arm, settings in comparison.experiment.methods.items()],
    )


def _reference(experiment: Experiment) -> str:
    return "the policy before training" if experiment.reference == START else experiment.reference


def _measured(comparison: Comparison) -> str:
    """Say in one sentence what every policy was measured on."""
    first = next((run.evaluations[0] for run in comparison.runs if run.evaluations), None)
    if first is None:
        return "Nothing is measured yet."
    replays = sum(mistake.replays for mistake in first.mistakes)
    return (
        f"Every policy plays the same {len(first.tasks)} held-out games, and goes on from the same "
        f"{len(first.mistakes)} recorded mistakes ({replays} replays)."
    )
