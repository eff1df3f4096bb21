"""``pivotopd compare``: arms and seeds side by side, from an experiment file to one report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pivotopd.comparison.results import Comparison

WIDTH = 140


def compare(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="A YAML file; see docs/comparison.md.")
    ],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at once.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and how far they are, and do nothing.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Start no run; report what is there, whatever code made it.")
    ] = False,
    from_tracking: Annotated[
        bool,
        typer.Option("--from-tracking", help="Start no run; read the figures from MLflow and check them."),
    ] = False,
) -> None:
    """Train every arm with every seed and report them side by side.

    The same command again goes on where an earlier one stopped; finished runs are taken as they are.
    """
    if dry_run + report_only + from_tracking > 1:
        from pivotopd.errors import ConfigError

        raise ConfigError(
            "--dry-run lists, --report-only writes a report, and --from-tracking reads MLflow",
            where="command line",
            mend="give one of them",
        )
    if dry_run:
        _list_runs(experiment)
    elif report_only:
        _report(experiment)
    elif from_tracking:
        _read_tracking(experiment)
    else:
        _run(experiment, jobs)


def _run(path: str, jobs: int) -> None:
    from flows.in_process import check_prefect_home, run_flow
    from flows.prefect_defaults import set_prefect_defaults
    from flows.server_watch import watch_server

    set_prefect_defaults()
    check_prefect_home()
    watch_server()
    from flows.compare import Listener, listen, with_jobs

    listen(Listener(typer.echo, show))
    run_flow(with_jobs(jobs), path)


def _report(path: str) -> None:
    from pivotopd.comparison.experiment import load_experiment
    from pivotopd.errors import ArtifactError
    from stages.compare import members_of, progress_of
    from stages.comparison_report import refuse_missing, report, tracked

    experiment = load_experiment(path)
    members = members_of(experiment, path)
    if not any(progress_of(member, any_code=True).evaluations for member in members):
        raise ArtifactError(
            f"there is nothing to report: none of {len(members)} runs has an evaluation",
            where=members[0].config.root,
            mend="leave --report-only out to make the runs, or set root in the experiment's overrides",
        )
    with tracked(experiment, members, {}) as tracker:
        comparison, address = report(experiment, members, tracker, codes={}, any_code=True)
        show(comparison, address)
        refuse_missing(comparison, address)


def _read_tracking(path: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from pivotopd.comparison.experiment import load_experiment
    from pivotopd.errors import RunsFailed
    from stages.compare import members_of
    from stages.tracked_comparison import tracked_figures

    figures = tracked_figures(members_of(load_experiment(path), path))
    shown = Table(title="Figures in MLflow", title_justify="left")
    for name in ("run", "updates", "figure", "MLflow", "artifact"):
        shown.add_column(name)
    for one in figures:
        values = ("missing" if value is None else f"{value:.6g}" for value in (one.tracked, one.stored))
        shown.add_row(one.label, str(one.iteration), one.name, *values)
    Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False).print(shown)
    differ = [one for one in figures if not one.agrees]
    if differ or not figures:
        raise RunsFailed(
            f"{len(differ)} of {len(figures)} figures in MLflow are not the artifacts'",
            where=path,
            mend="`pivotopd train` with a run's configuration sends what is missing; "
            "a figure that differs is another version's, or was changed there",
        )


def _list_runs(path: str) -> None:
    from pivotopd.comparison.experiment import load_experiment
    from stages.compare import members_of, progress_of
    from stages.comparison_report import state_of

    for member in members_of(load_experiment(path), path):
        progress = progress_of(member)
        state = state_of(progress, member.config.iterations, None)
        typer.echo(f"{member.cell.label:32} {state:55} {member.uri}")


def show(comparison: Comparison, address: str) -> None:
    """Print a comparison's tables and where its report lies."""
    from rich.console import Console
    from rich.table import Table

    from pivotopd.comparison.tables import recovery_table, success_table

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    for table in (success_table(comparison), recovery_table(comparison)):
        shown = Table(title=table.title, title_justify="left", caption=table.note, caption_justify="left")
        for index, name in enumerate(table.columns):
            shown.add_column(name, justify="right" if index else "left")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    console.print(f"report: {address}/report.html", soft_wrap=True)
