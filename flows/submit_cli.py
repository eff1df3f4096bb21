"""``pivotopd submit`` and ``pivotopd stage --to``: the same work as jobs of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from flows.train_cli import ConfigArgument

if TYPE_CHECKING:
    from pivotopd.artifacts import RunLayout
    from pivotopd.config import RunConfig
    from pivotopd.launch.base import Task
    from pivotopd.launch.dispatch import Dispatcher
    from stages.work import Job, Work


def submit(
    arguments: ConfigArgument = None,
    to: Annotated[str, typer.Option("--to", help="Platform: slurm or kubernetes.")] = "slurm",
    per_stage: Annotated[
        bool, typer.Option("--per-stage", help="A job for each stage instead of one for all.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Submit, and do not wait for the end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be submitted, and do nothing.")
    ] = False,
) -> None:
    """Train a policy as jobs of a cluster; what they ask for stands under `launch` in the configuration.

    The same command again finds the jobs that are there and goes on waiting. Ctrl-C cancels them.
    """
    from flows.arguments import config_from
    from flows.prefect_defaults import set_prefect_defaults
    from flows.train_cli import checked

    config = config_from(arguments)
    checked(config)
    config = _rooted(config)
    set_prefect_defaults()
    scripts = _scripts(
        config, to, per_stage=per_stage, detach=detach
    )  # refused before anything is shown, written or sent
    if dry_run:
        from stages.work import Work

        layout, jobs = _planned(config)
        _show(Work(config, layout), jobs, scripts)
    elif per_stage:
        _submit_stages(config, to, detach=detach)
    else:
        _submit_training(config, to, detach=detach)


def submit_stage(
    to: str,
    name: str,
    run: str,
    iteration: int | None,
    overrides: list[str],
    *,
    only: bool,
    detach: bool,
    dry_run: bool,
) -> None:
    """Run a stage again as one job; see ``pivotopd stage --help``."""
    from pivotopd.launch.registry import make_dispatcher
    from stages.command import rerun_jobs
    from stages.launched import rerun_task

    work, jobs = rerun_jobs(run, name, iteration, overrides, follow=not only)
    dispatcher = make_dispatcher(to, work.config.launch, work.layout, typer.echo)
    task = rerun_task(work.config, work.layout, jobs, overrides, only=only)
    scripts = [_script(dispatcher, task)]
    if dry_run:
        _show(work, jobs, scripts)
    elif _all_done(work, jobs):
        _show_jobs(work, jobs)
    else:
        _await(dispatcher, task, detach=detach)


def _submit_training(config: RunConfig, to: str, *, detach: bool) -> None:
    """Submit a whole training as one job and wait for it."""
    from flows.train import jobs_of
    from pivotopd.launch.registry import make_dispatcher
    from stages.launched import training_task
    from stages.runs import open_run

    work, plan = open_run(config)
    dispatcher = make_dispatcher(to, work.config.launch, work.layout, typer.echo)
    jobs = jobs_of(plan)
    if _all_done(work, jobs):
        typer.echo(f"all {len(jobs)} stages are done: {work.layout.uri}")
        return
    _await(dispatcher, training_task(work.config, jobs, dispatcher.records), detach=detach)


def _submit_stages(config: RunConfig, to: str, *, detach: bool) -> None:
    """Submit a training's stages, each after those it reads, and let the flow here wait for them."""
    from flows.tasks import perform_through
    from flows.train import jobs_of
    from flows.train_cli import run_training
    from pivotopd.launch.registry import make_dispatcher
    from stages.launched import StageJobs
    from stages.runs import open_run

    work, plan = open_run(config)
    dispatcher = make_dispatcher(to, work.config.launch, work.layout, typer.echo)
    stages = StageJobs(dispatcher)
    with _cancelled_with_us(dispatcher):
        stages.submit(work, jobs_of(plan))
        if detach:
            typer.echo("not waiting; the same command without --detach goes on with these jobs")
            return
        perform_through(stages.perform)
        run_training(work.config)


def _await(dispatcher: Dispatcher, task: Task, *, detach: bool) -> None:
    """Submit a task, or find it, and wait for its end while its log is shown.

    Raises:
        PivotError: How the job ended, where it did not end well.
    """
    from pivotopd.launch.dispatch import raise_for

    with _cancelled_with_us(dispatcher):
        submitted = dispatcher.ensure(task)
        if detach:
            typer.echo("not waiting; the same command without --detach goes on with this job")
            return
        raise_for(submitted, dispatcher.wait(submitted, follow=True))
        typer.echo(f"{task.name}: job {submitted.job} done")


@contextmanager
def _cancelled_with_us(dispatcher: Dispatcher) -> Iterator[None]:
    """Cancel the jobs where this command is asked to stop; where it dies or fails, they stay."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        dispatcher.cancel_all()
        raise


def _scripts(config: RunConfig, to: str, *, per_stage: bool, detach: bool) -> list[str]:
    """Return what would be submitted: a training's script, or one for each kind of stage.

    Raises:
        ConfigError: The platform, or what a job asks of it, is not acceptable.
    """
    from pivotopd.errors import ConfigError
    from pivotopd.launch.registry import make_dispatcher
    from stages.launched import stage_task, training_task

    layout, jobs = _planned(config)
    dispatcher = make_dispatcher(to, config.launch, layout, typer.echo)
    if not per_stage:
        return [_script(dispatcher, training_task(config, jobs, dispatcher.records, keep=False))]
    if detach and not dispatcher.launcher.chains:
        raise ConfigError(
            f"{dispatcher.launcher.kind} starts no job after another: something must wait for each stage",
            where="--detach",
            mend="leave --detach or --per-stage out",
        )
    firsts = {job.stage: job for job in reversed(jobs)}
    stages = dict.fromkeys(job.stage for job in jobs)
    return [_script(dispatcher, stage_task(config, layout, firsts[stage])) for stage in stages]


def _script(dispatcher: Dispatcher, task: Task) -> str:
    from pivotopd.launch.base import SHOWN_TOKEN

    return dispatcher.launcher.render(task, dispatcher.records.folder_of(task), SHOWN_TOKEN)


def _planned(config: RunConfig) -> tuple[RunLayout, list[Job]]:
    """Return a training's jobs; nothing is written."""
    from flows.train import jobs_of
    from pivotopd.artifacts import RunLayout
    from stages.runs import plan_of

    layout = RunLayout(config.root, config.name or "")
    return layout, jobs_of(plan_of(config, layout))


def _show(work: Work, jobs: Sequence[Job], scripts: Sequence[str]) -> None:
    """Print each job, and the scripts that would be submitted."""
    _show_jobs(work, jobs)
    for script in scripts:
        typer.echo("\n" + script, nl=False)


def _show_jobs(work: Work, jobs: Sequence[Job]) -> None:
    from stages.runner import planned

    for job in jobs:
        typer.echo(planned(work, job))


def _all_done(work: Work, jobs: Sequence[Job]) -> bool:
    return all(work.made(job) is not None for job in jobs)


def _rooted(config: RunConfig) -> RunConfig:
    """Return the configuration with name and absolute root: a job's address hangs on nothing else."""
    from pivotopd.artifacts import Store
    from stages.runs import named

    config = named(config)
    return config.model_copy(update={"root": Store(config.root).join("")})
