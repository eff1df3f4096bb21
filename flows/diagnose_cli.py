"""``pivotopd diagnose``: diagnose a policy in this process and print its report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pivotopd.artifacts import Artifact
    from pivotopd.config import RunConfig
    from stages.plan import Plan
    from stages.runner import Done
    from stages.work import Work

WIDTH = 150


def diagnose(
    subject: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="Address of a run (ROOT/NAME), or a model folder.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the run's."),
    ] = None,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=0, help="Updates behind the policy; default all.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="YAML file with the settings for a model folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
) -> None:
    """Say where a policy fails, whether one early mistake decides, and whether it recovers.

    The same command again goes on where an earlier one stopped. A model folder is diagnosed as the start
    policy of a run that is made for it.
    """
    from flows.in_process import check_prefect_home
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    check_prefect_home()
    given = overrides or []
    if config is not None or _is_model(Path(subject)):
        settings = _for_model(Path(subject), config, given)
        if dry_run:
            _show_plan(*_planned(settings), iteration or 0)
            return
        _refuse_early(settings, iteration or 0)
        run, given = _made_run(settings), []
    else:
        run = subject
    _diagnose(run, iteration, given, dry_run=dry_run)


def _diagnose(run: str, iteration: int | None, overrides: list[str], *, dry_run: bool) -> None:
    """Run the flow on a stored run, or only show its jobs."""
    from flows.diagnose import diagnose as flow
    from flows.evaluate import prepare
    from flows.in_process import run_flow
    from flows.server_watch import watch_server
    from flows.train import Listener, listen
    from pivotopd.threads import set_threads
    from stages.runner import describe

    work, plan, chosen = prepare(run, iteration, overrides)
    set_threads(work.config.threads)
    if dry_run:
        _show_plan(work, plan, chosen)
        return
    finished: list[Done] = []

    def show(done: Done) -> None:
        spent = sum(done.artifact.manifest.seconds.values())
        typer.echo(f"{describe(done.job):22} {'cached' if done.cached else f'{spent:.1f} s':>8}")
        finished.append(done)

    watch_server()
    listen(Listener(done=show))
    run_flow(flow, run, chosen, overrides)
    show_report(finished[-1].artifact)


def _is_model(folder: Path) -> bool:
    """Tell a model folder from a run, which holds a config.yaml."""
    from pivotopd.artifacts import content_folder

    return (content_folder(folder) / "config.json").is_file() and not (folder / "config.yaml").is_file()


def _for_model(folder: Path, file: str | None, overrides: list[str]) -> RunConfig:
    """Return the configuration of the run in which a model folder is diagnosed."""
    from pivotopd.config_files import load_config
    from pivotopd.errors import ArtifactError
    from stages.runs import named

    if not _is_model(folder):
        raise ArtifactError(
            "this is no model folder: it has no config.json",
            where=str(folder),
            mend="with --config, give a folder with config, safetensors weights and tokenizer",
        )
    path = json.dumps(str(folder.resolve()))  # quoted as YAML reads it
    return named(load_config(file, [*overrides, "student.kind=pretrained", f"student.path={path}"]))


def _refuse_early(config: RunConfig, iteration: int) -> None:
    """Refuse what cannot be diagnosed before the run is written that would be made for it.

    Raises:
        ArtifactError: A model folder alone has no updates; or an input of the diagnosis does not exist.
        ConfigError: The diagnosis or the model's prompts cannot be made with these settings.
    """
    from pivotopd.errors import ArtifactError
    from pivotopd.prompt_check import check_prompts
    from stages.diagnosis_plan import DiagnosisPlan

    if iteration:
        raise ArtifactError(
            f"a model folder is the policy before any update, not after {iteration}",
            where="--iteration",
            mend="leave --iteration out, or give the address of a run",
        )
    check_prompts(config)
    DiagnosisPlan(_planned(config)[1]).jobs(0)


def _made_run(config: RunConfig) -> str:
    """Write the run in which a model is diagnosed, unless its name is another student's; return its address.

    Raises:
        ConfigError: There is a run of that name with another student.
    """
    from pivotopd.artifacts import RunLayout
    from pivotopd.errors import ConfigError
    from stages.runs import find_run, open_run

    layout = RunLayout(config.root, config.name or "")
    if layout.store.read_text(layout.config) is not None:
        there, _ = find_run(layout.uri)
        if there.student != config.student:
            raise ConfigError(
                "there is a run of this name with another student",
                where=layout.uri,
                mend="give another one: name=NAME",
            )
    work, _ = open_run(config)
    return work.layout.uri


def _planned(config: RunConfig) -> tuple[Work, Plan]:
    from pivotopd.artifacts import RunLayout
    from stages.plan import Plan
    from stages.work import Work

    layout = RunLayout(config.root, config.name or "")
    return Work(config, layout), Plan(config, layout)


def _show_plan(work: Work, plan: Plan, iteration: int) -> None:
    """Print every job with its address and whether it is published."""
    from stages.diagnosis_plan import DiagnosisPlan
    from stages.runner import planned

    for job in DiagnosisPlan(plan).jobs(iteration):
        typer.echo(planned(work, job, width=22))


def show_report(artifact: Artifact) -> None:
    """Print a report's tables and where its files lie."""
    from rich.console import Console
    from rich.table import Table

    from pivotopd.diagnosis.report import EXPLANATION, columns, heading, rows
    from stages.diagnosis_report import report_of

    report = report_of(artifact)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    console.print(heading(report.subject))
    for part in report.parts:
        table = Table(title=part.title, title_justify="left", caption="\n".join(part.notes) or None)
        names = columns(report, part)
        for place, name in enumerate(names):
            table.add_column(name, justify="left" if place in (0, len(names) - 1) else "right")
        for row in rows(report, part):
            table.add_row(*row)
        console.print(table)
    console.print(EXPLANATION)
    console.print(f"report: {artifact.local_path() / 'report.md'}", soft_wrap=True)
