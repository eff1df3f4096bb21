"""A stage of a stored run, and what follows it, in this process: no command line, no Prefect, no tracking."""

from __future__ import annotations

from contextlib import closing

from stages.command import perform_saying, rerun_jobs


def run_stage(
    uri: str, stage: str, iteration: int | None, *overrides: str, follow: bool = False
) -> list[str]:
    """Run a stage and return what it says."""
    said: list[str] = []
    work, jobs = rerun_jobs(uri, stage, iteration, list(overrides), follow=follow)
    with closing(work):
        for job in jobs:
            perform_saying(work, job, said.append)
    return said
