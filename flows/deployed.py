"""What the deployments of ``prefect.yaml`` run: the flows behind typed forms, with lines in Prefect's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Failed
from pydantic import Field

from flows import compare as comparison
from flows import diagnose as diagnosis
from flows import evaluate as evaluation
from flows import train as training
from flows.board import Board
from flows.tasks import run_job
from pivotopd.config_files import load_config
from pivotopd.errors import PivotError
from pivotopd.runs.newest import newest_run
from pivotopd.threads import set_threads
from pivotopd.tracking import NoTracker
from stages.command import rerun_jobs
from stages.metrics import metrics_of
from stages.runner import Done, describe
from stages.runs import find_run, named

Stage = Literal[
    "warm_start",
    "skills",
    "rollout",
    "label",
    "recover",
    "update",
    "evaluate",
    "diagnose",
    "mistakes",
    "intervene",
    "recovery_check",
    "agreement",
    "probabilities",
    "diagnosis_report",
]
"""Stages that can be run again alone; a test holds them against ``stages.command.STAGES``."""

ConfigPath = Annotated[str, Field(description="YAML file, as the worker's machine sees it.", min_length=1)]
Run = Annotated[str, Field(description="Address of the run: ROOT/NAME.", min_length=1)]
Overrides = Annotated[
    Sequence[str], Field(description="Settings that differ, each KEY=VALUE, such as seed=1.")
]
Iteration = Annotated[
    int | None, Field(description="Updates behind the policy; empty takes the last one.", ge=0)
]
Outcome = dict[str, str] | State[Any]


@flow(name="pivotopd-train", flow_run_name="train {config_path}", log_prints=False)
def train(config_path: ConfigPath, overrides: Overrides = ()) -> Outcome:
    """Train one policy; a run with the same settings goes on where it stopped."""
    try:
        config = named(load_config(config_path, list(overrides)))
        _listen(config.threads)
        return training.train.fn(config.model_dump(mode="json"))
    except PivotError as error:
        return Failed(message=str(error), data=error)


@flow(name="pivotopd-evaluate", flow_run_name="evaluate {run}", log_prints=False)
def evaluate(run: Run, iteration: Iteration = None, overrides: Overrides = ()) -> Outcome:
    """Evaluate a policy of a run, on its own panel or on others."""
    return _of_run(run, lambda: evaluation.evaluate.fn(run, iteration, overrides))


@flow(name="pivotopd-evaluate-newest", flow_run_name="evaluate the newest of {root}", log_prints=False)
def evaluate_newest(
    root: Annotated[str, Field(description="Storage root, whose newest checkpoint is meant.", min_length=1)],
    overrides: Overrides = (),
) -> Outcome:
    """Evaluate the last policy of the run under a root that was trained last."""
    try:
        run = newest_run(root)
    except PivotError as error:
        return Failed(message=str(error), data=error)
    return _of_run(run, lambda: evaluation.evaluate.fn(run, None, overrides))


@flow(name="pivotopd-diagnose", flow_run_name="diagnose {run}", log_prints=False)
def diagnose(run: Run, iteration: Iteration = None, overrides: Overrides = ()) -> Outcome:
    """Say where a policy fails, whether one early mistake decides, and whether it recovers."""
    return _of_run(run, lambda: diagnosis.diagnose.fn(run, iteration, overrides))


@flow(name="pivotopd-compare", flow_run_name="compare {path}", log_prints=False)
def compare(
    path: Annotated[str, Field(description="Experiment file, as the worker's machine sees it.")],
    jobs: Annotated[int, Field(description="Runs at once.", ge=1)] = 1,
) -> Outcome:
    """Train every arm with every seed, and report them side by side."""
    logger = get_run_logger()
    comparison.listen(comparison.Listener(say=logger.info, done=lambda _, at: logger.info("report: %s", at)))
    outcome: Outcome = comparison.with_jobs(jobs)(path, return_state=True)
    return outcome


@flow(name="pivotopd-stage", flow_run_name="{stage} of {run}", log_prints=False)
def stage(
    run: Run,
    stage: Annotated[Stage, Field(description="Stage to run again.")],
    iteration: Annotated[int | None, Field(description="Training iteration, from 0.", ge=0)] = None,
    overrides: Overrides = (),
    only: Annotated[bool, Field(description="Leave out the stages that follow it.")] = False,
) -> Outcome:
    """Run one stage of a run again from stored inputs, and what follows it in the same iteration."""
    return _of_run(run, lambda: _rerun(run, stage, iteration, list(overrides), only=only))


def _rerun(run: str, name: str, iteration: int | None, overrides: list[str], *, only: bool) -> dict[str, str]:
    """Run the jobs of a stage's rerun as tasks, and return their digests by name."""
    work, jobs = rerun_jobs(run, name, iteration, overrides, follow=not only)
    board, digests = Board(work, NoTracker()), {}
    try:
        for job in jobs:
            done = run_job(work, job)
            _log_done(done)
            board.add(done)
            digests[describe(job)] = done.artifact.digest
    finally:
        work.close()
    board.show()
    return digests


def _of_run(run: str, body: Callable[[], Outcome]) -> Outcome:
    """Run the body of a flow on a stored run with the run's threads; its error becomes a Failed state."""
    try:
        _listen(find_run(run)[0].threads)
        return body()
    except PivotError as error:
        return Failed(message=str(error), data=error)


def _listen(threads: int) -> None:
    """Set the threads of this process, and let its flows report to Prefect's log."""
    set_threads(threads)
    training.listen(training.Listener(done=_log_done))


def _log_done(done: Done) -> None:
    """Write a finished stage's line."""
    spent = "cached" if done.cached else f"{sum(done.artifact.manifest.seconds.values()):.1f} s"
    values = ", ".join(f"{name} {value:.4g}" for name, value in metrics_of(done.artifact).items())
    get_run_logger().info("%s: %s, %s; %s", describe(done.job), spent, done.artifact.uri, values)
