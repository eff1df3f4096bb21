"""The diagnosis flow: where a policy fails, whether one early mistake decides, whether it recovers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.board import show_report
from flows.evaluate import prepare
from flows.tasks import failed, run_job
from flows.train import report, tracked
from pivotopd.errors import PivotError
from stages.diagnosis_plan import DiagnosisPlan
from stages.runner import check_inputs


@flow(name="diagnose", flow_run_name="diagnose {run}", validate_parameters=False, log_prints=False)
def diagnose(
    run: str, iteration: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, str] | State[Any]:
    """Diagnose a policy of a run; parts that are done already are taken as they are.

    Args:
        run: Address of the run: ROOT/NAME.
        iteration: Updates behind the policy; None takes the last one.
        overrides: Settings that differ from the run's.

    Returns:
        The digest of the report; a Failed state holds the stage's error.
    """
    try:
        work, plan, chosen = prepare(run, iteration, overrides)
        parts = DiagnosisPlan(plan)
        last = parts.job("diagnosis_report", chosen)
        check_inputs(work, parts.jobs(chosen))
        with closing(work), tracked(work, last, below=True) as tracker:
            for job in parts.jobs(chosen):
                done = run_job(work, job)
                report(tracker, done)
            tracker.log_files(done.artifact.local_path())
            show_report(
                f"{work.layout.run}-diagnosis", (done.artifact.local_path() / "report.md").read_text()
            )
            return {"report": last.digest}
    except PivotError as error:
        return failed(error)
