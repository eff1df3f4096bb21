"""The comparison flow: a task a run, each run a process of its own; then the report.

Runs are ordinary training runs: finished ones are found and not done again, so the same flow goes on where an
earlier one stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from prefect import flow, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.tasks import failed
from pivotopd.comparison.experiment import Experiment, load_experiment
from pivotopd.comparison.launch import STOPPED, Launcher, error_line, last_line
from pivotopd.comparison.results import Comparison
from pivotopd.errors import PivotError
from pivotopd.tracking import Tracker
from stages.compare import Member, log_of, members_of, progress_of, working_folder, write_config
from stages.comparison_report import refuse_missing, report, tracked

_DEFECT = 1
"""Exit code of a run whose task broke off before there was a process."""
QUIET_S = 60.0
"""Seconds between lines that say how far the runs are."""


def _silent(*_: object) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Listener:
    """Who watches a comparison from the same process; the command line is one."""

    say: Callable[[str], None] = _silent
    done: Callable[[Comparison, str], None] = _silent


_listener = Listener()


def listen(listener: Listener) -> None:
    """Set who watches the flows of this process; a flow's parameters must be plain values."""
    global _listener  # noqa: PLW0603 - the one place where a running flow can be watched from outside
    _listener = listener


@flow(name="compare", flow_run_name="compare {path}", validate_parameters=False, log_prints=False)
def compare(path: str) -> dict[str, str] | State[Any]:
    """Train every arm with every seed, and report them side by side.

    Args:
        path: Experiment file.

    Returns:
        The address of the report; a Failed state where runs are missing.
    """
    try:
        experiment = load_experiment(path)
        members = members_of(experiment, path)
        tags = {"prefect_flow_run": str(runtime.flow_run.id or "none")}
        with tracked(experiment, members, tags) as tracker:
            codes = _train(experiment, members, tracker)
            comparison, address = report(experiment, members, tracker, codes=codes)
            _listener.done(comparison, address)
            refuse_missing(comparison, address)
        return {"report": address}
    except PivotError as error:
        return failed(error)


def with_jobs(jobs: int) -> Callable[..., Any]:
    """Return the flow with so many runs at once."""
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=jobs)
    return compare.with_options(task_runner=cast(Any, runner))


@dataclass
class _Floor:
    """Where the runs of a comparison go on: what starts them, and how they ended."""

    launcher: Launcher
    folder: Path
    tracker: Tracker
    running: dict[str, Path] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)


def _train(experiment: Experiment, members: Sequence[Member], tracker: Tracker) -> dict[str, int]:
    """Run what is not complete, and return the exit codes by cell."""
    with Launcher(_environment(members[0])) as launcher:
        floor = _Floor(launcher, working_folder(experiment, members[0]), tracker)
        # Known before any task starts: digests parse code, which CPython 3.11 cannot do in several threads.
        complete = [progress_of(member).complete for member in members]
        # Written before any run starts: a folder that cannot be written is one error, not one of each run.
        configs = [
            None if done else write_config(member, floor.folder)
            for member, done in zip(members, complete, strict=True)
        ]
        futures = {
            member.cell.label: _submit(member, floor, config)
            for member, config in zip(members, configs, strict=True)
        }
        waiting = set(futures.values())
        while waiting:
            waiting = set(wait(list(waiting), timeout=QUIET_S).not_done)
            for label, log in list(floor.running.items()):
                _listener.say(f"{label}: {last_line(log) or 'waits for the warm start'}")
        for label, future in futures.items():
            if label not in floor.codes and not future.state.is_completed():
                floor.codes[label] = _DEFECT
                _listener.say(f"{label}: not run: {future.state.message}")
    return floor.codes


def _submit(member: Member, floor: _Floor, config: Path | None) -> PrefectFuture[Any]:
    """Submit a run as a task; without a configuration it is complete."""
    label, log, start = member.cell.label, log_of(member, floor.folder), member.start

    @task(name="run", task_run_name=label, cache_policy=NO_CACHE, persist_result=False, log_prints=False)
    def body(uri: str) -> State[Any]:
        if config is None:
            _listener.say(f"{label}: complete, {uri}")
            return Completed(name="Cached", message=uri)
        if floor.launcher.stopping:
            floor.codes[label] = STOPPED
            return Failed(message="the comparison was stopped first")
        _listener.say(f"{label}: starts, {uri}, log {log}")
        command = [sys.executable, "-m", "flows.cli", "train", str(config)]
        floor.running[label] = log
        code = floor.codes[label] = floor.launcher.run(command, log, start)
        del floor.running[label]
        floor.tracker.adopt(uri)
        _listener.say(f"{label}: ended with exit code {code}" + (f": {error_line(log)}" if code else ""))
        return Failed(message=f"exit code {code}, see {log}") if code else Completed(message=uri)

    return body.submit(member.uri)


def _environment(member: Member) -> dict[str, str]:
    """Return variables of the runs: their threads, and this flow's Prefect server instead of one each."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        address = str(client.api_url).rstrip("/")
    return {"OMP_NUM_THREADS": str(member.config.threads), "PREFECT_API_URL": address}
