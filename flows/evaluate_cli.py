"""What ``pivotopd evaluate`` does: run the evaluation flow in this process and print its figures."""

from __future__ import annotations

import typer

from flows.in_process import check_prefect_home, run_flow
from flows.prefect_defaults import set_prefect_defaults
from flows.server_watch import watch_server


def run_evaluation(run: str, iteration: int | None, overrides: list[str], *, dry_run: bool) -> None:
    """Evaluate a policy of a run; see ``pivotopd evaluate --help``."""
    set_prefect_defaults()
    check_prefect_home()
    from flows.evaluate import evaluate, jobs_of, prepare
    from flows.train import Listener, listen
    from pivotopd.threads import set_threads
    from stages.metrics import metrics_of
    from stages.runner import Done, describe, planned

    work, plan, chosen = prepare(run, iteration, overrides)
    set_threads(work.config.threads)
    if dry_run:
        for job in jobs_of(plan, chosen):
            typer.echo(planned(work, job))
        return

    def show(done: Done) -> None:
        typer.echo(f"{describe(done.job):18} {'cached' if done.cached else 'done':10} {done.artifact.uri}")
        for name, value in metrics_of(done.artifact).items():
            typer.echo(f"    {name} = {value:g}")

    watch_server()
    listen(Listener(done=show))
    run_flow(evaluate, run, chosen, overrides)
