"""What ``pivotopd stage`` does here: run a stage again, track it, and say what is stale afterwards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pivotopd.artifacts import Artifact
    from stages.runner import Done
    from stages.work import Job, Work


def rerun_stage(
    name: str,
    run: str,
    iteration: int | None,
    overrides: list[str],
    *,
    only: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a stage again; see ``pivotopd stage --help``."""
    from pivotopd.threads import set_threads
    from stages.command import rerun_jobs

    work, jobs = rerun_jobs(run, name, iteration, overrides, follow=not only)
    with closing(work):
        if dry_run:
            done: list[Done] = []
            if not as_json:
                _show_plan(work, jobs)
        else:
            set_threads(work.config.threads)
            done = _tracked_work(work, jobs, quiet=as_json)
        show_stale(work, jobs, overrides, iteration, done, as_json=as_json, dry_run=dry_run)


def _show_plan(work: Work, jobs: Sequence[Job]) -> None:
    from stages.runner import planned

    for job in jobs:
        typer.echo(planned(work, job))


def check_run(work: Work, jobs: Sequence[Job]) -> None:
    """Refuse a rerun that would fail after its work: for an input, or for another manifest.

    Raises:
        ArtifactError: An input does not exist, or a manifest of the run is damaged.
    """
    from stages.runner import check_inputs
    from stages.stale import stale_after

    check_inputs(work, jobs)
    stale_after(work.layout, jobs)


def _tracked_work(work: Work, jobs: Sequence[Job], *, quiet: bool) -> list[Done]:
    """Do the jobs, as a run in MLflow below the training's where there is anything to do."""
    from stages.command import perform_saying

    say: Callable[[str], None] = (lambda _line: None) if quiet else typer.echo
    if all(work.made(job) is not None for job in jobs):
        return [perform_saying(work, job, say) for job in jobs]
    check_run(work, jobs)
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    from flows.train import report, tracked

    finished = []
    with tracked(work, jobs[0], below=True) as tracker:
        for job in jobs:
            finished.append(perform_saying(work, job, say))
            report(tracker, finished[-1])
    return finished


def show_stale(
    work: Work,
    jobs: Sequence[Job],
    overrides: Sequence[str],
    iteration: int | None,
    done: Sequence[Done],
    *,
    as_json: bool,
    dry_run: bool = False,
) -> None:
    """Say what rests on the replaced artifacts, and how to bring it up to date."""
    from stages.stale import stale_after

    stale = stale_after(work.layout, jobs)
    mend = _mend(work.layout.uri, overrides, iteration) if stale else []
    if as_json:
        published = {one.job.digest: one.cached for one in done}
        told = {
            "run": work.layout.uri,
            "jobs": [
                {
                    "stage": job.stage,
                    "iteration": job.iteration,
                    "digest": job.digest,
                    "cached": published.get(job.digest, work.made(job) is not None),
                    "uri": work.store.join(f"{job.prefix}/{job.digest}"),
                }
                for job in jobs
            ],
            "stale": [_plain(one) for one in stale],
            "mend": mend,
        }
        typer.echo(json.dumps(told, indent=2))
        return
    for line in _lines(stale, mend, dry_run=dry_run):
        typer.echo(line)


def stale_lines(
    work: Work, jobs: Sequence[Job], overrides: Sequence[str], iteration: int | None
) -> list[str]:
    """Return lines that name what rests on replaced artifacts and how to mend it; none if nothing does.

    Args:
        work: The run, with the overrides.
        jobs: What was run again.
        overrides: Settings that differ from the run's.
        iteration: Iteration of the jobs.
    """
    from stages.stale import stale_after

    stale = stale_after(work.layout, jobs)
    return _lines(stale, _mend(work.layout.uri, overrides, iteration), dry_run=False)


def _lines(stale: Sequence[Artifact], mend: Sequence[str], *, dry_run: bool) -> list[str]:
    if not stale:
        return []
    lines = [f"{'would be ' if dry_run else ''}stale: made from what this replaces, and kept"]
    for one in stale:
        at = "" if one.manifest.iteration is None else f" {one.manifest.iteration:04d}"
        lines.append(f"  {one.manifest.stage + at:18} {one.digest[:12]}")
    return [*lines, "to bring it up to date:", *(f"  {line}" for line in mend)]


def _plain(artifact: Artifact) -> dict[str, object]:
    made = artifact.manifest
    return {"stage": made.stage, "iteration": made.iteration, "digest": made.digest, "uri": artifact.uri}


def _mend(uri: str, overrides: Sequence[str], iteration: int | None) -> list[str]:
    """Return the commands that make what follows anew."""
    resume = ["pivotopd", "train", "--resume", uri]
    whole = f"{shlex.join([*resume, *overrides])}    (redoes all that settings or code change)"
    if iteration is None or not overrides:
        return [whole]
    fork = shlex.join([*resume, *overrides, "--from", str(iteration)])
    return [
        f"{fork} --fork NEWNAME    (a new run: these settings from iteration {iteration} on)",
        whole,
    ]
