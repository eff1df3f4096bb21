"""``python -m stages.NAME``: run one stage of a run, as a scheduler or a person does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, NoReturn

import typer

from pivotopd.errors import ConfigError
from pivotopd.exits import run_and_leave
from pivotopd.threads import set_threads
from stages.diagnosis_plan import STAGES as DIAGNOSIS_STAGES
from stages.diagnosis_plan import DiagnosisPlan
from stages.metrics import metrics_of
from stages.plan import LOOP, Plan
from stages.runner import Done, describe, perform, planned
from stages.runs import rerun
from stages.work import Job, Work

STAGES = ("warm_start", "skills", *LOOP, "evaluate", *DIAGNOSIS_STAGES)
OF_A_POLICY = ("evaluate", *DIAGNOSIS_STAGES)
"""Stages of a policy rather than of an iteration: there is one more of them than there are iterations."""


RunOption = Annotated[str, typer.Option("--run", help="Address of the run: ROOT/NAME.")]
IterationOption = Annotated[
    int | None, typer.Option("--iteration", min=0, help="Training iteration, from 0.")
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the run's.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def job_of(plan: Plan, stage: str, iteration: int | None) -> Job:
    """Return a stage's job.

    Raises:
        ConfigError: Unknown stage, an iteration that is missing or not planned, or a stage that the method
            does not need.
    """
    if stage == "warm_start":
        return plan.warm_start()
    if stage not in STAGES:
        raise ConfigError(
            f"there is no stage {stage!r}", where="stage", mend=f"use one of {', '.join(STAGES)}"
        )
    if stage == "skills":
        if not plan.with_skills:
            raise ConfigError(
                f"method {plan.config.method.name} retrieves no skills", mend="its run has no skill bank"
            )
        return plan.skills()
    if iteration is None:
        raise ConfigError(
            f"stage {stage} belongs to an iteration", where="--iteration", mend="give --iteration N"
        )
    planned = plan.config.iterations
    if iteration > planned or (iteration == planned and stage not in OF_A_POLICY):
        raise ConfigError(
            f"the run has {planned} iterations, counted from 0; there is no {stage} of iteration {iteration}",
            where="--iteration",
            mend="give a smaller one, or iterations=N for a longer run",
        )
    if stage == "evaluate":
        return plan.evaluate(iteration)
    if stage in DIAGNOSIS_STAGES:
        return DiagnosisPlan(plan).job(stage, iteration)
    if stage not in plan.stages():
        raise ConfigError(
            f"method {plan.config.method.name} with these settings has no stage {stage}",
            mend=f"its stages are {', '.join(plan.stages())}",
        )
    return plan.job(stage, iteration)


def rerun_jobs(
    uri: str, stage: str, iteration: int | None, overrides: list[str], *, follow: bool
) -> tuple[Work, list[Job]]:
    """Return the work of a stage's rerun and its jobs, in order.

    Args:
        uri: Address of the run.
        stage: Name of the stage.
        iteration: Training iteration.
        overrides: Settings that hold from this stage on.
        follow: With the stages of the same iteration that read it.

    Raises:
        ConfigError: There is no such job.
        ArtifactError: There is no such run.
    """
    work, plan = rerun(uri, stage, iteration, overrides)
    jobs = [job_of(plan, stage, iteration)]
    if follow and stage in LOOP and iteration is not None:
        later = plan.stages()[plan.stages().index(stage) + 1 :]
        jobs += [plan.job(name, iteration) for name in later]
    return work, jobs


def perform_saying(work: Work, job: Job, say: Callable[[str], None]) -> Done:
    """Do a job, or find its artifact, and say a line about it and one for each metric."""
    done = perform(work, job)
    say(f"{describe(job):18} {'cached' if done.cached else 'done':10} {done.artifact.uri}")
    for name, value in metrics_of(done.artifact).items():
        say(f"    {name} = {value:g}")
    return done


def _run_stage(stage: str, run: str, iteration: int | None, overrides: list[str], *, dry_run: bool) -> None:
    """Run a stage alone, or say what would be done."""
    work, [job] = rerun_jobs(run, stage, iteration, overrides, follow=False)
    with closing(work):
        if dry_run:
            typer.echo(planned(work, job))
            return
        set_threads(work.config.threads)
        perform_saying(work, job, typer.echo)


def _run_update(run: str, iteration: int | None, overrides: list[str]) -> None:
    """Run the update, alone or as one of the ranks that a launcher started."""
    from stages.launched_ranks import follow, follows, leading

    if follows():
        work, _jobs = rerun_jobs(run, "update", iteration, overrides, follow=False)
        set_threads(work.config.threads)
        with closing(work):
            follow(work)
        sys.stdout.flush()
        os._exit(0)  # taking the group apart while its first rank leaves can abort this process
    with leading():
        _run_stage("update", run, iteration, overrides, dry_run=False)


def main(stage: str) -> NoReturn:
    """Entry point of ``python -m stages.NAME``."""

    def command(
        run: RunOption,
        iteration: IterationOption = None,
        overrides: OverridesArgument = None,
        dry_run: DryRunOption = False,
    ) -> None:
        given = overrides or []
        if stage != "update" or dry_run:
            _run_stage(stage, run, iteration, given, dry_run=dry_run)
        else:
            _run_update(run, iteration, given)

    command.__doc__ = f"Run the {stage} stage of a run from its stored inputs."
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    run_and_leave(app)
