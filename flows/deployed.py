"""What the deployments of ``prefect.yaml`` run: the flows behind typed forms, with lines in Prefect's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from pydantic import Field

from flows import compare as comparison
from flows import diagnose as diagnosis
from flows import evaluate as evaluation
from flows import train as training
from flows.board import Board, show_report
from flows.rerun import check_run, stale_lines
from flows.tasks import failed, run_job
from flows.train_cli import checked
from pivotopd.comparison.report import tables_as_markdown
from pivotopd.comparison.results import Comparison
from pivotopd.config_files import apply_overrides, load_config
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

Word = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Outcome = dict[str, str] | State[Any]


@flow(name="pivotopd-train", flow_run_name="train {config_path}", log_prints=False)
def train(config_path: Word, overrides: Sequence[str] = ()) -> Outcome:
    """Train one policy; a run with the same settings goes on where it stopped.

    Args:
        config_path: YAML file, as the worker's machine sees it.
        overrides: Settings that differ from the file's, each KEY=VALUE, such as seed=1.
    """
    try:
        config = named(load_config(config_path, list(overrides)))
        checked(config)
        _listen(config.threads)
        return training.train.fn(config.model_dump(mode="json"))
    except PivotError as error:
        return failed(error)


@flow(name="pivotopd-evaluate", flow_run_name="evaluate {run}", log_prints=False)
def evaluate(run: Word, iteration: Count | None = None, overrides: Sequence[str] = ()) -> Outcome:
    """Evaluate a policy of a run, on its own panel or on others.

    Args:
        run: Address of the run, ROOT/NAME.
        iteration: Updates behind the policy; empty takes the last one.
        overrides: Settings that differ from the run's, each KEY=VALUE, such as evaluation.tasks=64.
    """
    return _of_run(run, overrides, lambda: evaluation.evaluate.fn(run, iteration, overrides))


@flow(name="pivotopd-evaluate-newest", flow_run_name="evaluate the newest of {root}", log_prints=False)
def evaluate_newest(root: Word, overrides: Sequence[str] = ()) -> Outcome:
    """Evaluate the last policy of the run under a root that was trained last.

    Args:
        root: Storage root; of its runs, the one with the newest checkpoint is meant.
        overrides: Settings that differ from the run's, each KEY=VALUE, such as evaluation.tasks=64.
    """
    try:
        run = newest_run(root)
    except PivotError as error:
        return failed(error)
    return _of_run(run, overrides, lambda: evaluation.evaluate.fn(run, None, overrides))


@flow(name="pivotopd-diagnose", flow_run_name="diagnose {run}", log_prints=False)
def diagnose(run: Word, iteration: Count | None = None, overrides: Sequence[str] = ()) -> Outcome:
    """Say where a policy fails, whether one early mistake decides, and whether it recovers.

    Args:
        run: Address of the run, ROOT/NAME.
        iteration: Updates behind the policy; empty takes the last one.
        overrides: Settings that differ from the run's, each KEY=VALUE.
    """
    return _of_run(run, overrides, lambda: diagnosis.diagnose.fn(run, iteration, overrides))


@flow(name="pivotopd-compare", flow_run_name="compare {path}", log_prints=False)
def compare(path: Word, jobs: Annotated[int, Field(ge=1)] = 1) -> Outcome:
    """Train every arm with every seed, and report them side by side.

    Args:
        path: Experiment file, as the worker's machine sees it.
        jobs: Runs at once.
    """
    logger = get_run_logger()

    def reported(compared: Comparison, address: str) -> None:
        logger.info("report: %s", address)
        show_report(f"{compared.experiment.name}-comparison", tables_as_markdown(compared))

    comparison.listen(comparison.Listener(say=logger.info, done=reported))
    outcome: Outcome = comparison.with_jobs(jobs)(path, return_state=True)
    return outcome


@flow(name="pivotopd-stage", flow_run_name="{stage} of {run}", log_prints=False)
def stage(
    run: Word,
    stage: Stage,
    iteration: Count | None = None,
    overrides: Sequence[str] = (),
    only: bool = False,
) -> Outcome:
    """Run one stage of a run again from stored inputs, and what follows it in the same iteration.

    Args:
        run: Address of the run, ROOT/NAME.
        stage: Stage to run again.
        iteration: Training iteration, from 0.
        overrides: Settings that hold from this stage on, each KEY=VALUE; a new artifact lies beside the old.
        only: Leave out the stages that follow it.
    """
    return _of_run(run, overrides, lambda: _rerun(run, stage, iteration, list(overrides), only=only))


def _rerun(run: str, name: str, iteration: int | None, overrides: list[str], *, only: bool) -> dict[str, str]:
    """Run a stage's rerun as tasks, tracked as ``pivotopd stage`` tracks it; return the digests by name."""
    work, jobs = rerun_jobs(run, name, iteration, overrides, follow=not only)
    done_already = all(work.made(job) is not None for job in jobs)
    if not done_already:
        check_run(work, jobs)
    tracking = nullcontext(NoTracker()) if done_already else training.tracked(work, jobs[0], below=True)
    digests = {}
    with closing(work), tracking as tracker:
        board = Board(work, tracker)
        for job in jobs:
            done = run_job(work, job)
            training.report(tracker, done)
            board.add(done)
            digests[describe(job)] = done.artifact.digest
        board.show()
        for line in stale_lines(work, jobs, overrides, iteration):
            get_run_logger().info("%s", line)
    return digests


def _of_run(run: str, overrides: Sequence[str], body: Callable[[], Outcome]) -> Outcome:
    """Run the body of a flow on a stored run with the threads asked for; its error becomes a Failed state."""
    try:
        _listen(apply_overrides(find_run(run)[0], overrides).threads)
        return body()
    except PivotError as error:
        return failed(error)


def _listen(threads: int) -> None:
    """Set the threads of this process, and let its flows report to Prefect's log."""
    set_threads(threads)
    training.listen(training.Listener(done=_log_done))


def _log_done(done: Done) -> None:
    """Write a finished stage's line."""
    spent = "cached" if done.cached else f"{sum(done.artifact.manifest.seconds.values()):.1f} s"
    values = ", ".join(f"{name} {value:.4g}" for name, value in metrics_of(done.artifact).items())
    get_run_logger().info("%s: %s, %s; %s", describe(done.job), spent, done.artifact.uri, values)
