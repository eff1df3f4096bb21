"""A stage's job as a Prefect task: retried where the store was out of reach, Cached where it was done.

The store decides whether work is done, not Prefect's result cache: it checks that the files exist, and it
survives a lost Prefect database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.states import Completed, Failed

from pivotopd.errors import PivotError, StorageError
from pivotopd.stops import stop_behind
from stages.runner import Done, describe, perform
from stages.work import Job, Work

STORAGE_RETRIES = 2
STORAGE_DELAY_S = 10
GPU_LIMIT = "pivotopd-gpu"
"""Prefect's global concurrency limit with a slot for each GPU; where there is none, nobody waits."""
_ALLOCATED = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")
"""Variables of a process whose GPUs a cluster has handed out already."""
_perform: Callable[[Work, Job], Done] | None = None


def perform_through(performer: Callable[[Work, Job], Done]) -> None:
    """Set what does the jobs of this process's flows; without it, this process does them itself."""
    global _perform  # noqa: PLW0603 - a flow's parameters are plain values, and a performer is none
    _perform = performer


def performs_here() -> bool:
    """Tell whether this process does the jobs of its flows itself."""
    return _perform is None


def run_job(work: Work, job: Job, here: Callable[[Work, Job], Done] = perform) -> Done:
    """Run a job as a task run of the current flow.

    Args:
        work: The process's share of the run.
        job: The job.
        here: Does it where this process does the jobs itself.

    Raises:
        PivotError: The stage's own error, unchanged.
    """
    outcome: list[Done | PivotError] = []

    @task(
        name=job.stage,
        task_run_name=describe(job),
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=STORAGE_RETRIES,
        retry_delay_seconds=STORAGE_DELAY_S,
        retry_condition_fn=_out_of_reach,
        log_prints=False,
    )
    def body(digest: str, uri: str) -> State[Any]:
        try:
            with _gpus(work, job):
                done = (_perform or here)(work, job)
        except Exception as error:
            state = failed(error)
            if not isinstance(error, PivotError) or isinstance(error, StorageError):
                raise
            outcome.append(error)
            return state  # raising would also print Prefect's traceback
        outcome.append(done)
        name = "Cached" if done.cached else "Completed"
        return Completed(name=name, message=done.artifact.uri, data={"digest": digest, "uri": uri})

    body(job.digest, work.store.join(f"{job.prefix}/{job.digest}"))
    last = outcome[-1]
    if isinstance(last, PivotError):
        raise last
    return last


def failed(error: Exception) -> State[Any]:
    """Return the state of a task or flow that ends with an error.

    Raises:
        BaseException: The request to stop in whose wake the error was raised; that is no failure.
    """
    asked = stop_behind(error)
    if asked is not None:
        raise asked from None
    return Failed(message=str(error), data=error)


@contextmanager
def _gpus(work: Work, job: Job) -> Iterator[None]:
    """Hold a slot for each GPU that the stage asks for under ``launch``; what is published needs none."""
    here = performs_here() and not any(name in os.environ for name in _ALLOCATED)
    gpus = work.config.launch.needed(job.stage).gpus if here else 0
    if not gpus or work.made(job) is not None:
        yield
        return
    with concurrency(GPU_LIMIT, occupy=gpus):
        yield


def _out_of_reach(task: Any, run: Any, state: State[Any]) -> bool:
    """Retry only what another try can mend."""
    del task, run
    return isinstance(state.result(raise_on_failure=False), StorageError)
