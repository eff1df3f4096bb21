"""The command line ``pivotopd``. Only assembly: each command imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from flows.compare_cli import compare
from flows.diagnose_cli import diagnose
from flows.doctor_cli import doctor
from flows.games_cli import games_app
from flows.inspect_cli import inspect
from flows.manual_cli import config, tables
from flows.methods_cli import methods
from flows.runs_cli import runs_app
from flows.serve_cli import serve_app
from flows.stage_cli import evaluate, stage
from flows.submit_cli import submit
from flows.train_cli import train

app = typer.Typer(
    name="pivotopd",
    help="Train language-model agents with PivotOPD: avoid pivotal mistakes, and recover from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from pivotopd import __version__

        typer.echo(f"pivotopd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version  # its callback has acted


app.command(rich_help_panel="Runs")(train)
app.command(rich_help_panel="Runs")(stage)
app.command(rich_help_panel="Runs")(submit)
app.command(rich_help_panel="Runs")(evaluate)
app.command(rich_help_panel="Runs")(compare)
app.command(rich_help_panel="Runs")(diagnose)
app.command(rich_help_panel="Runs")(inspect)
app.add_typer(runs_app, name="runs", rich_help_panel="Runs")
app.add_typer(serve_app, name="serve", rich_help_panel="Runs")
app.add_typer(games_app, name="games")
app.command(rich_help_panel="Help")(config)
app.command(rich_help_panel="Help")(methods)
app.command(rich_help_panel="Help")(tables)
app.command(rich_help_panel="Help")(doctor)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    from pivotopd.exits import run_and_leave

    run_and_leave(app)


if __name__ == "__main__":
    main()
