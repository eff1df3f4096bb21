"""The training flow: rollout, label, recover, update, iteration after iteration; evaluations between them.

A task is a stage. Everything that is already published is taken as it is, so the same flow with the same
configuration goes on where an earlier one stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State

from flows.board import Board
from flows.tasks import failed, performs_here, run_job
from pivotopd.collector import Standing
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config, parse_config
from pivotopd.errors import NothingToTrainOn, PivotError, Preempted
from pivotopd.manifest import canonical_json
from pivotopd.progress import Progress, silent
from pivotopd.provenance import git_commit, package_versions
from pivotopd.stops import stop_behind
from pivotopd.tracking import RunStatus, Tracker, experiment_of, model_of, open_tracker
from stages.metrics import metrics_of
from stages.plan import Plan
from stages.registering import enroll
from stages.runner import Done, Streamer, describe, streamed
from stages.runs import open_run
from stages.servers import check_servers
from stages.work import Job, Work


@dataclass(frozen=True)
class Listener:
    """Who watches a flow from the same process; the command line is one."""

    progress: Progress = silent
    done: Callable[[Done], None] = lambda _done: None


_listener = Listener()


def listen(listener: Listener) -> None:
    """Set who watches the flows of this process; a flow's parameters must be plain values."""
    global _listener  # noqa: PLW0603 - the one place where a running flow can be watched from outside
    _listener = listener


@flow(name="train", flow_run_name="{config[name]}", validate_parameters=False, log_prints=False)
def train(config: dict[str, Any]) -> dict[str, str] | State[Any]:
    """Train one policy.

    Args:
        config: A run's configuration as plain values; see ``pivotopd config``.

    Returns:
        The address of the run and the digest of its last policy; a Failed state holds the stage's error.
    """
    try:
        work, plan = open_run(parse_config(config, where="flow parameters"), _listener.progress)
        with (
            closing(Standing()) as standing,
            closing(work),
            closing(Streamer(partial(streamed, plan))) as streamer,
            tracked(work) as tracker,
        ):
            idle, board, jobs = 0, Board(work, tracker), jobs_of(plan)
            if performs_here():
                check_servers(work, jobs)
            for job in jobs:
                done = run_job(work, job, streamer.perform)
                if job.stage == "update" and not done.cached:
                    standing.settle()  # engine and learner have started
                report(tracker, done)
                board.add(done)
                enroll(tracker, work, done)
                if job.stage == "update":
                    idle = (idle + 1) * done.artifact.manifest.counts["idle"]
                    _refuse_idling(idle, work.config)
            board.show()
            return {"run": work.layout.uri, "policy": plan.policy(work.config.iterations).digest}
    except PivotError as error:
        return failed(error)


def _refuse_idling(idle: int, config: RunConfig) -> None:
    """Stop a run that has learned nothing for too long."""
    if idle > config.update.idle_limit:
        raise NothingToTrainOn(
            f"{idle} iterations in a row had nothing won and no advantage other than zero",
            mend="play more tasks or a larger group, check the labels, or raise update.idle_limit",
        )


def jobs_of(plan: Plan) -> list[Job]:
    """Return all jobs of a training run, in order."""
    jobs: list[Job] = [] if plan.start().folder else [plan.warm_start()]
    if plan.with_skills:
        jobs.append(plan.skills())
    for iteration in range(plan.config.iterations):
        if plan.evaluated(iteration):
            jobs.append(plan.evaluate(iteration))
        jobs += [plan.job(stage, iteration) for stage in plan.stages()]
    jobs.append(plan.evaluate(plan.config.iterations))
    return jobs


@contextmanager
def tracked(work: Work, evaluation: Job | None = None, *, below: bool = False) -> Iterator[Tracker]:
    """Open the run in MLflow and say there how it ended.

    A preempted run, or one that was interrupted, is killed; one that met an error is failed.

    Args:
        work: The run.
        evaluation: Given for an evaluation asked for afterwards: it gets a run of its own, since its games
            and settings may be others than the training's.
        below: Show that run below the training's.
    """
    status: RunStatus = "FAILED"
    tracker = _start_tracker(work, evaluation, below=below)
    try:
        yield tracker
        status = "FINISHED"
    except BaseException as error:
        if isinstance(error, Preempted) or not isinstance(error, Exception) or stop_behind(error):
            status = "KILLED"
        raise
    finally:
        tracker.finish(status)


def _start_tracker(work: Work, evaluation: Job | None, *, below: bool) -> Tracker:
    """Open the run in MLflow, with the tags that lead back to code, data and jobs."""
    config = work.config
    model_of(config)  # refused before any work, not after the first update
    tracker = open_tracker(config.tracking, config.root)
    name, address = config.name or work.layout.run, work.layout.uri
    if evaluation is not None:
        name = f"{name} {describe(evaluation)} {evaluation.digest[:8]}"
        address = work.store.join(f"{evaluation.prefix}/{evaluation.digest}")
    tracker.start(
        name,
        experiment=experiment_of(config),
        tags=_tags(work, trains=evaluation is None),
        config=config.model_dump(mode="json"),
        run_uri=address,
        parent_uri=work.layout.uri if below else None,
    )
    tracker.log_text("config.yaml", dump_config(config))
    templates = work.store.read_text(work.layout.templates)
    if templates is not None:
        tracker.log_text("templates.json", templates)
    return tracker


def report(tracker: Tracker, done: Done) -> None:
    """Tell the tracker and the listener about a finished job."""
    step = done.job.iteration or 0
    metrics = metrics_of(done.artifact)
    seconds = done.artifact.manifest.seconds
    metrics |= {f"{done.job.stage}/seconds/{phase}": value for phase, value in seconds.items()}
    counts = done.artifact.manifest.counts
    metrics |= {f"{done.job.stage}/counts/{name}": float(value) for name, value in counts.items()}
    sink = tracker
    if done.job.stage == "evaluate":
        sink = tracker.child(describe(done.job), tags={"policy": done.job.inputs["policy"].digest})
        sink.log(metrics, step)
        sink.finish()
    tracker.log(metrics, step)
    tracker.log_input(
        describe(done.job).replace(" ", "-"),
        digest=done.artifact.digest,
        uri=done.artifact.uri,
        rows=sum(part.rows for part in done.artifact.manifest.parts),
        context=done.job.stage,
    )
    _listener.done(done)


def _tags(work: Work, *, trains: bool) -> dict[str, str]:
    config = work.config
    identity = canonical_json(
        config.model_dump(mode="json", exclude={"root", "tracking", "threads", "streaming", "launch"})
    )
    tags = {
        "method": config.method.name,
        "seed": str(config.seed),
        "environment": f"{work.environment.spec.name} {work.environment.spec.version}",
        "config_digest": sha256(identity.encode()).hexdigest(),
        "data_valid": work.environment.data_fingerprint(config.environment.valid_split),
        "git_commit": git_commit() or "none",
        "prefect_flow_run": str(runtime.flow_run.id or "none"),
        **{f"version.{name}": version for name, version in package_versions().items()},
    }
    if trains:
        tags["data_train"] = work.environment.data_fingerprint(config.environment.train_split)
    for name, variable in (("slurm_job", "SLURM_JOB_ID"), ("kubernetes_job", "PIVOTOPD_KUBERNETES_JOB")):
        if variable in os.environ:
            tags[name] = os.environ[variable]
    if "KUBERNETES_SERVICE_HOST" in os.environ:  # elsewhere a host's name is no pod's
        tags["kubernetes_pod"] = os.environ.get("HOSTNAME", "none")
    return tags
