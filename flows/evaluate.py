"""The evaluation flow: one policy of a run on a panel, with the start policy beside it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.board import Board
from flows.tasks import failed, run_job
from flows.train import report, tracked
from pivotopd.artifacts import list_artifacts
from pivotopd.errors import ArtifactError, PivotError
from stages.plan import Plan
from stages.registering import enroll
from stages.runner import check_inputs
from stages.runs import rerun, updates_done
from stages.work import Job, Work


@flow(name="evaluate", flow_run_name="evaluate {run}", validate_parameters=False, log_prints=False)
def evaluate(
    run: str, iteration: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, str] | State[Any]:
    """Evaluate a policy of a run.

    Args:
        run: Address of the run: ROOT/NAME.
        iteration: Updates behind the policy; None takes the last one.
        overrides: Settings that differ from the run's, such as other games.

    Returns:
        The digest of the evaluation; a Failed state holds the stage's error.
    """
    try:
        work, plan, chosen = prepare(run, iteration, overrides)
        check_inputs(work, jobs_of(plan, chosen))
        with closing(work), tracked(work, plan.evaluate(chosen)) as tracker:
            board = Board(work, tracker)
            for job in jobs_of(plan, chosen):
                done = run_job(work, job)
                report(tracker, done)
                board.add(done)
                enroll(tracker, work, done)
            board.show()
            return {"evaluation": plan.evaluate(chosen).digest}
    except PivotError as error:
        return failed(error)


def prepare(run: str, iteration: int | None, overrides: Sequence[str]) -> tuple[Work, Plan, int]:
    """Return work, plan and the number of updates behind the policy.

    Raises:
        ArtifactError: The policy does not exist, or nothing of the run is this version's.
    """
    work, plan = rerun(run, "evaluate", None, overrides)
    finished = updates_done(work, plan)
    made = any(True for _ in list_artifacts(work.store, work.layout.checkpoints))
    if not finished and made and iteration != 0:
        raise ArtifactError(
            "the run's checkpoints were made by other code or with other games than these",
            where=work.store.join(work.layout.checkpoints),
            mend="use the version that made them; --iteration 0 takes the start policy",
        )
    chosen = finished if iteration is None else iteration
    if chosen > finished:
        raise ArtifactError(
            f"the run has {finished} updates, not {chosen}",
            where=run,
            mend="train it further, or give a smaller --iteration",
        )
    return work, plan, chosen


def jobs_of(plan: Plan, iteration: int) -> list[Job]:
    """Return the evaluation's jobs: the start policy's first, whose mistakes the other one replays."""
    last = plan.evaluate(iteration)
    return [plan.evaluate(0), last] if "start" in last.inputs else [last]
