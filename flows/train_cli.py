"""``pivotopd train``: the main job, from a file and overrides to a table of what it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pivotopd.config import RunConfig
    from pivotopd.prompt_check import PromptCheck
    from pivotopd.runs.forks import Fork

ConfigArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG] [KEY=VALUE]...", help="A YAML file, and settings that differ from it."),
]


def train(
    arguments: ConfigArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and what is done already.")
    ] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="With --dry-run: first the resolved configuration.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with the run at this address: ROOT/NAME.")
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option("--fork", help="With --resume: begin a new run of this name with its artifacts."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option("--from", min=0, help="With --fork: first iteration of the new run's own; default all."),
    ] = None,
) -> None:
    """Train a policy. The same command again goes on where an earlier one stopped.

    --resume takes the stored config.yaml, and says beforehand what other settings or code will redo.
    """
    config, shared = _asked_for(arguments or [], resume, fork, first)
    prompts = checked(config)
    from flows.resume import keep, say_other_settings, say_redone, say_shared

    if shared is not None:
        if not dry_run:
            keep(config, shared)
        say_shared(config, shared)
    elif resume is not None:
        say_redone(config)
    else:
        say_other_settings(config)
    if dry_run:
        _show_plan(config, prompts, settings=settings, fork=shared)
        return
    for line in prompts.lines:
        typer.echo(line)
    run_training(config)


def _asked_for(
    arguments: list[str], resume: str | None, fork: str | None, first: int | None
) -> tuple[RunConfig, Fork | None]:
    """Return the configuration of a file and overrides, of a stored run, or of a fork of one."""
    from pivotopd.errors import ConfigError

    if (fork is not None and resume is None) or (first is not None and fork is None):
        raise ConfigError(
            "--fork is about the run of --resume, and --from about --fork",
            where="command line",
            mend="give --resume ROOT/NAME [--fork NEWNAME [--from ITERATION]]",
        )
    if resume is None:
        from flows.arguments import config_from

        return config_from(arguments), None
    from flows.resume import forked, resumed

    config = resumed(resume, arguments)
    return (config, None) if fork is None else forked(resume, config, fork, first)


def checked(config: RunConfig) -> PromptCheck:
    """Refuse what cannot be run, before anything is started or written; return what prompts will be.

    That is: an engine that is not installed, a method with a signal that cannot be computed or kept, a
    teacher that cannot be asked, a model whose chat template gives no prompts to train on.
    """
    from pivotopd.config import TinyStudent
    from pivotopd.methods.registry import make_method
    from pivotopd.models.engines import check_engine_section
    from pivotopd.prompt_check import check_prompts, check_tiny_student
    from pivotopd.teacher_section import LocalSection

    if not config.engine.urls:  # what stands behind them has its own
        check_engine_section(config.engine)
    if isinstance(config.student, TinyStudent):
        check_tiny_student(config)
    needs = make_method(config.method, config.recovery.depth).needs
    if needs.target_tokens:
        from pivotopd.target_size import check_targets

        check_targets(config, needs)
    if needs.larger_teacher:
        from pivotopd.larger_teacher import check_larger_teacher

        check_larger_teacher(config)
    if isinstance(config.teacher, LocalSection):
        from pivotopd.local_teacher import check_engine, check_local_teacher

        check_engine(config.teacher)
        check_local_teacher(config.teacher)
    return check_prompts(config)


def run_training(config: RunConfig) -> None:
    """Run the training flow in this process and show its progress and its result."""
    from flows.in_process import check_prefect_home, run_flow
    from flows.prefect_defaults import set_prefect_defaults
    from flows.server_watch import watch_server

    set_prefect_defaults()
    check_prefect_home()
    watch_server()
    from flows.console import Watcher
    from flows.train import Listener, listen
    from flows.train import train as flow
    from pivotopd.threads import set_threads
    from stages.runs import named

    config = named(config)
    set_threads(config.threads)
    with Watcher(config) as watcher:
        listen(Listener(watcher.progress, watcher.done))
        run_flow(flow, config.model_dump(mode="json"))
    watcher.show_result()


def _show_plan(config: RunConfig, prompts: PromptCheck, *, settings: bool, fork: Fork | None = None) -> None:
    """Print every job with its address and whether it is published."""
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    from flows.train import jobs_of
    from pivotopd.artifacts import RunLayout
    from pivotopd.config_files import dump_config
    from stages.fork import jobs_shared
    from stages.plan import Plan
    from stages.runner import planned
    from stages.runs import named, plan_of
    from stages.work import Work

    config = named(config)
    layout = RunLayout(config.root, config.name or "")
    work = Work(config, layout)
    if fork is None:
        plan = plan_of(config, layout)
    else:  # its record is not there yet
        plan = Plan(config, layout, shared=jobs_shared(layout.store, fork))
    if settings:
        typer.echo(dump_config(config))
    for line in prompts.lines:
        typer.echo(line, err=True)  # the other stream: what is printed stays one line a job
    for job in jobs_of(plan):
        typer.echo(planned(work, job))
