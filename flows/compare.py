"""The comparison flow: a task a run, each run a process of its own; then the report.

Runs are ordinary training runs: finished ones are found and not done again, so the same flow goes on where an
earlier one stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from prefect import flow, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from pivotopd.comparison.experiment import Experiment, load_experiment
from pivotopd.comparison.launch import Launcher, last_line
from pivotopd.comparison.results import Comparison
from pivotopd.errors import PivotError, Preempted, RunsFailed
from pivotopd.provenance import git_commit
from pivotopd.tracking import RunStatus, Tracker
from stages.compare import (
    Member,
    log_of,
    measured,
    members_of,
    progress_of,
    publish_report,
    start_tracking,
    working_folder,
    write_config,
)

QUIET_S = 60.0
"""Seconds between lines that say how far the runs are."""
Say = Callable[[str], None]
_say: Say = print
_show: Callable[[Comparison, str], None] = lambda _comparison, _address: None  # noqa: E731 - a default


def listen(say: Say, show: Callable[[Comparison, str], None]) -> None:
    """Set who hears of a comparison of this process; a flow's parameters must be plain values."""
    global _say, _show
    _say, _show = say, show


@flow(name="compare", flow_run_name="compare {path}", validate_parameters=False, log_prints=False)
def compare(path: str, report_only: bool = False) -> dict[str, str] | State[Any]:
    """Compare methods and seeds.

    Args:
        path: Experiment file.
        report_only: Start no run; report what is there.

    Returns:
        The address of the report; a Failed state where runs are missing.
    """
    try:
        experiment = load_experiment(path)
        members = members_of(experiment, path)
        tags = {"git_commit": git_commit() or "none", "prefect_flow_run": str(runtime.flow_run.id or "none")}
        tracker = start_tracking(experiment, members, tags)
        status: RunStatus = "FAILED"
        try:
            codes = {} if report_only else _train(experiment, members, tracker)
            comparison = _measured(experiment, members, codes, any_code=report_only)
            for member in members:
                tracker.adopt(member.uri)
            address = publish_report(comparison, members[0], tracker)
            status = "FAILED" if comparison.missing else "FINISHED"
        except (Preempted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            tracker.finish(status)
        _show(comparison, address)
        _refuse_missing(comparison, address)
        return {"report": address}
    except PivotError as error:
        return Failed(message=str(error), data=error)


def with_jobs(jobs: int) -> Callable[..., Any]:
    """Return the flow with so many runs at once."""
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=jobs)
    return compare.with_options(task_runner=cast(Any, runner))


def _measured(
    experiment: Experiment, members: Sequence[Member], codes: Mapping[str, int], *, any_code: bool
) -> Comparison:
    runs = [measured(member, code=codes.get(member.cell.label), any_code=any_code) for member in members]
    return Comparison(experiment, tuple(runs))


def _refuse_missing(comparison: Comparison, address: str) -> None:
    if comparison.missing:
        named = "; ".join(f"{run.arm} seed {run.seed}: {run.state}" for run in comparison.missing)
        raise RunsFailed(
            f"{len(comparison.missing)} of {len(comparison.runs)} runs are missing: {named}",
            where=address,
            mend="their logs stand there under logs/; the same command goes on with them",
        )


def _train(experiment: Experiment, members: Sequence[Member], tracker: Tracker) -> dict[str, int]:
    """Run what is not complete, and return the exit codes by cell."""
    folder = working_folder(experiment, members[0])
    codes: dict[str, int | None] = {}
    with Launcher(_environment(members[0])) as launcher:
        futures = [_submit(member, launcher, folder, codes, tracker) for member in members]
        waiting = set(futures)
        while waiting:
            waiting = set(wait(list(waiting), timeout=QUIET_S).not_done)
            for member in members:
                if waiting and codes.get(member.cell.label, 0) is None:
                    _say(f"{member.cell.label}: {last_line(log_of(member, folder))}")
    return {label: code for label, code in codes.items() if code is not None}


def _submit(
    member: Member, launcher: Launcher, folder: Path, codes: dict[str, int | None], tracker: Tracker
) -> PrefectFuture[Any]:
    """Submit a run's task; the run stands in ``codes`` from its start, with its exit code from its end."""
    label = member.cell.label

    @task(name="run", task_run_name=label, cache_policy=NO_CACHE, persist_result=False, log_prints=False)
    def body(uri: str) -> State[Any]:
        if progress_of(member).complete:
            _say(f"{label}: complete, {uri}")
            return Completed(name="Cached", message=uri)
        log, codes[label] = log_of(member, folder), None
        _say(f"{label}: starts, {uri}, log {log}")
        command = [sys.executable, "-m", "flows.cli", "train", str(write_config(member, folder))]
        codes[label] = code = launcher.run(command, log, member.start)
        tracker.adopt(uri)
        _say(f"{label}: ended with exit code {code}" + (f": {last_line(log)}" if code else ""))
        if code:
            return Failed(message=f"exit code {code}, see {log}")
        return Completed(message=uri)

    return body.submit(member.uri)


def _environment(member: Member) -> dict[str, str]:
    """Return variables of the runs: their threads, and this flow's Prefect server instead of one each."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        address = str(client.api_url).rstrip("/")
    return {"OMP_NUM_THREADS": str(member.config.threads), "PREFECT_API_URL": address}
