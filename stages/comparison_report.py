"""The report of a comparison: measure its runs, write the files, attach them to its MLflow run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pivotopd.comparison.experiment import Experiment
from pivotopd.comparison.report import report_files
from pivotopd.comparison.results import Comparison, Measured
from pivotopd.errors import RunsFailed
from pivotopd.exits import EXIT_CODES
from pivotopd.provenance import git_commit
from pivotopd.stops import stop_behind
from pivotopd.tracking import RunStatus, Tracker, experiment_of, open_tracker
from stages.compare import Member, Progress, measure, panel_fingerprint, prefix_of, progress_of


@contextmanager
def tracked(experiment: Experiment, members: Sequence[Member], tags: Mapping[str, str]) -> Iterator[Tracker]:
    """Open the comparison's own run in MLflow, below which its training runs come; say there how it ended."""
    tracker = start_tracking(experiment, members, tags)
    status: RunStatus = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except BaseException as error:
        if stop_behind(error) is not None:
            status = "KILLED"
        raise
    finally:
        tracker.finish(status)


def report(
    experiment: Experiment,
    members: Sequence[Member],
    tracker: Tracker,
    *,
    codes: Mapping[str, int],
    any_code: bool = False,
) -> tuple[Comparison, str]:
    """Measure all runs, publish the report, and return both it and its address.

    Args:
        experiment: The experiment.
        members: Its runs.
        tracker: The comparison's own run.
        codes: Exit codes of the runs that were started, by cell.
        any_code: Take what other code made where nothing of this code is there.

    Raises:
        ArtifactError: A table is damaged or of another version.
    """
    runs = []
    for member in members:
        runs.append(measured(member, code=codes.get(member.cell.label), any_code=any_code))
        tracker.adopt(member.uri)
    comparison = Comparison(experiment, tuple(runs))
    return comparison, publish(comparison, members[0], tracker)


def refuse_missing(comparison: Comparison, address: str) -> None:
    """Say which runs are missing, once all else is reported.

    Raises:
        RunsFailed: Some are.
    """
    if comparison.missing:
        named = "; ".join(f"{run.arm} seed {run.seed}: {run.state}" for run in comparison.missing)
        raise RunsFailed(
            f"{len(comparison.missing)} of {len(comparison.runs)} runs are missing: {named}",
            where=address,
            mend="logs/ there says what happened; the same command goes on with them",
        )


def measured(member: Member, *, code: int | None, any_code: bool = False) -> Measured:
    """Return what a run has been measured at so far.

    Args:
        member: The run.
        code: Exit code of its process, if one was started.
        any_code: See :func:`progress_of`.

    Raises:
        ArtifactError: A table is damaged or of another version.
    """
    progress = progress_of(member, any_code=any_code)
    cell = member.cell
    return Measured(
        cell.arm,
        cell.seed,
        member.uri,
        member.config.iterations,
        progress.complete,
        state_of(progress, member.config.iterations, code),
        tuple(measure(progress)),
    )


def state_of(progress: Progress, iterations: int, code: int | None) -> str:
    """Say how far a run is, and why it is no further."""
    done = f"{len(progress.evaluations)} of {progress.wanted} evaluations"
    done += ", made by other code" if progress.other_code else f", {progress.updates} of {iterations} updates"
    if progress.complete:
        return "complete, made by other code" if progress.other_code else "complete"
    if code is None or code == 0:
        return f"incomplete: {done}"
    why = f"killed by signal {-code}" if code < 0 else EXIT_CODES.get(code, "")
    return f"failed with exit code {code} ({why}): {done}"


def start_tracking(experiment: Experiment, members: Sequence[Member], tags: Mapping[str, str]) -> Tracker:
    """Open the comparison's own run in MLflow; its training runs come below it."""
    config = members[0].config
    tracker = open_tracker(config.tracking, config.root)
    tracker.start(
        experiment.name,
        experiment=experiment_of(config),
        tags={
            "comparison": experiment.name,
            "panel": panel_fingerprint(members[0]),
            "git_commit": git_commit() or "none",
            **tags,
        },
        config=experiment.model_dump(mode="json"),
        run_uri=members[0].work.store.join(prefix_of(experiment)),
    )
    tracker.flush()  # a new database is made by this process alone, before runs log to it
    return tracker


def publish(comparison: Comparison, member: Member, tracker: Tracker) -> str:
    """Write the report into the root and attach it to the comparison's MLflow run; return its address."""
    prefix = prefix_of(comparison.experiment)
    store = member.work.store
    for name, data in report_files(comparison).items():
        store.blobs.write(f"{prefix}/{name}", data)
        tracker.log_file(name, data)
    for curve in comparison.curves.values():
        for one in curve:
            metrics = {f"{one.method}/success_mean_of_types": one.family_mean.mean}
            if one.recovery is not None:
                metrics[f"{one.method}/recovery_rate"] = one.recovery.rate.mean
            tracker.log(metrics, one.iteration)
    return store.join(prefix)
