"""``pivotopd train``: the main job, from a file and overrides to a table of what it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pivotopd.config import RunConfig
    from pivotopd.prompt_check import PromptCheck

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
) -> None:
    """Train a policy. The same command again goes on where an earlier one stopped."""
    from flows.arguments import config_from

    config = config_from(arguments)
    prompts = checked(config)
    if dry_run:
        _show_plan(config, prompts, settings=settings)
        return
    for line in prompts.lines:
        typer.echo(line)
    run_training(config)


def checked(config: RunConfig) -> PromptCheck:
    """Refuse what cannot be run, before anything is started or written; return what prompts will be.

    That is: a method with a signal that cannot be computed or kept, a teacher that cannot be asked, a model
    whose chat template gives no prompts to train on.
    """
    from pivotopd.config import LocalSection
    from pivotopd.methods.registry import make_method
    from pivotopd.prompt_check import check_prompts

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


def _show_plan(config: RunConfig, prompts: PromptCheck, *, settings: bool) -> None:
    """Print every job with its address and whether it is published."""
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    from flows.train import jobs_of
    from pivotopd.artifacts import RunLayout
    from pivotopd.config_files import dump_config
    from stages.plan import Plan
    from stages.runner import describe
    from stages.runs import named
    from stages.work import Work

    config = named(config)
    layout = RunLayout(config.root, config.name or "")
    work, plan = Work(config, layout), Plan(config, layout)
    if settings:
        typer.echo(dump_config(config))
    for line in prompts.lines:
        typer.echo(line, err=True)  # the other stream: what is printed stays one line a job
    for job in jobs_of(plan):
        state = "cached" if work.find(job) else "would run"
        typer.echo(f"{describe(job):18} {state:10} {work.store.join(f'{job.prefix}/{job.digest}')}")
