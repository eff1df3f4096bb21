"""``pivotopd runs``: list, verify, copy and prune runs, in a folder or a bucket."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pivotopd.artifacts import RunLayout
    from pivotopd.progress import Progress

DAMAGED = 3
"""Exit code of a verification that found something: an artifact's, see :mod:`pivotopd.errors`."""

SHOWN = 20
"""Problems that are printed."""

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Address of a run: ROOT/NAME.")]
RootArgument = Annotated[str, typer.Argument(metavar="ROOT", help="Folder or fsspec URI: s3://bucket/runs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")]

runs_app = typer.Typer(help="List, verify, copy and prune stored runs.", no_args_is_help=True)


@runs_app.command("list")
def list_runs(root: RootArgument = "runs") -> None:
    """Show the runs under a root: updates, artifacts, size, last activity. One listing; nothing is read."""
    from rich.console import Console
    from rich.table import Table

    from pivotopd.runs import listing

    table = Table("run", "updates", "artifacts", "files", "size", "last activity (UTC)")
    found = listing.list_runs(root)
    for run in found:
        when = "unknown" if run.last_activity is None else f"{run.last_activity:%Y-%m-%d %H:%M:%S}"
        stages = ", ".join(f"{stage} {count}" for stage, count in sorted(run.stages.items()))
        table.add_row(run.name, str(run.updates), stages, str(run.files), size(run.bytes), when)
    if not found:
        typer.echo(f"no runs under {root}")
        return
    Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False).print(table)


@runs_app.command()
def verify(run: RunArgument) -> None:
    """Read every file of a run again and compare it with its manifest. Exit code 3 where one is wrong."""
    from pivotopd.runs.verify import verify_run

    found = verify_run(_layout(run), _progress())
    for problem in found.problems[:SHOWN]:
        typer.echo(f"{problem.what}: {problem.where}")
    if len(found.problems) > SHOWN:
        typer.echo(f"and {len(found.problems) - SHOWN} more")
    pruned = f", {found.pruned} files pruned" if found.pruned else ""
    typer.echo(
        f"artifacts: {found.artifacts}, files right: {found.files} ({size(found.bytes)}){pruned}, "
        f"problems: {len(found.problems)}"
    )
    if found.problems:
        raise typer.Exit(DAMAGED)


@runs_app.command()
def copy(
    run: RunArgument,
    target: Annotated[str, typer.Argument(metavar="ROOT", help="Where to; the run keeps its name.")],
) -> None:
    """Copy a run to another root, verified. Broken off, the same command goes on."""
    from pivotopd.runs.copying import copy_run

    layout = _layout(run)
    done = copy_run(layout, target, _progress())
    typer.echo(
        f"{layout.run}: {done.artifacts} artifacts copied ({done.files} files, {size(done.bytes)}), "
        f"{done.already} were there"
    )


@runs_app.command()
def prune(
    run: RunArgument,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Keep the rows of so many iterations, the newest.")
    ],
    checkpoints: Annotated[
        int | None,
        typer.Option("--checkpoints", min=1, help="Keep so many policies, the newest; default all."),
    ] = None,
    leftover_hours: Annotated[
        float, typer.Option("--leftover-hours", min=1.0, help="Age of unpublished files that are removed.")
    ] = 24.0,
    dry_run: DryRun = False,
) -> None:
    """Remove tables, and if asked policies, of old iterations; what a manifest in use names stays.

    Manifests and metrics stay too: the run goes on as before, and nothing is done again.
    """
    from pivotopd.runs.prune import Retention, plan_pruning
    from pivotopd.runs.prune import prune as carry_out

    layout = _layout(run)
    plan = plan_pruning(layout, Retention(iterations, checkpoints, leftover_hours))
    for removal in plan.removals:
        gone = sum(entry.bytes for entry in removal.files)
        typer.echo(f"{removal.artifact.path}: {len(removal.files)} files, {size(gone)}")
    for entry in plan.leftovers:
        typer.echo(f"{entry.path}: in no manifest, {size(entry.bytes)}")
    for artifact in plan.held:
        typer.echo(f"{artifact.path}: kept, a manifest in use names it")
    if not dry_run:
        carry_out(layout, plan)
    said = "would remove" if dry_run else "removed"
    typer.echo(f"{said} {len(plan.files)} files, {size(sum(entry.bytes for entry in plan.files))}")


def size(count_bytes: int) -> str:
    """Return a size for people, in powers of 1024."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _layout(uri: str) -> RunLayout:
    from pivotopd.artifacts import RESERVED, RunLayout
    from pivotopd.errors import ConfigError

    layout = RunLayout.from_uri(uri)
    if not layout.run or layout.run in RESERVED:
        raise ConfigError(f"{uri!r} is no run's address", where="RUN", mend="give ROOT/NAME")
    return layout


def _progress() -> Progress:
    """Return a bar where there is a terminal, else silence: the last line says all."""
    from pivotopd.progress import silent

    if not sys.stderr.isatty():
        return silent

    def show(what: str, done: int, total: int) -> None:
        sys.stderr.write(f"\r{what}: {done} of {total}" + ("\n" if done == total else ""))
        sys.stderr.flush()

    return show
