"""Stages as jobs of a cluster: what a job runs, what it waits for, and its artifact once it has ended."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pivotopd.artifacts import Artifact, RunLayout
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.launch.base import Needed, Task
from pivotopd.launch.dispatch import Dispatcher, Submitted, raise_for
from pivotopd.launch.records import Records
from stages.runner import Done, describe
from stages.work import Job, Work

_OVER_RANKS = frozenset({"update"})
"""Stages that several processes may share; all others are the work of one."""

_CONFIG = "config.yaml"


def stage_task(config: RunConfig, layout: RunLayout, job: Job, after: Sequence[str] = ()) -> Task:
    """Return the task that does one stage's job of a training.

    Raises:
        ConfigError: Several processes are asked for, and the stage is the work of one.
    """
    arguments = ("-m", f"stages.{job.stage}", *_options(layout, job))
    return Task(_name(job), job.digest, arguments, _resources(config, job.stage), tuple(after))


def rerun_task(
    config: RunConfig, layout: RunLayout, jobs: Sequence[Job], overrides: Sequence[str], *, only: bool
) -> Task:
    """Return the task that runs a stage again, with those that follow it: ``pivotopd stage`` in one job.

    Of several processes each runs the stage itself, where the others follow the first; that stage is the last
    of its iteration.

    Args:
        config: The run's configuration with the overrides.
        layout: The run.
        jobs: The stage's job, then those that follow.
        overrides: Settings that differ.
        only: Whether what follows is left out.
    """
    first, resources = jobs[0], _resources(config, jobs[0].stage)
    if resources.processes > 1:
        arguments = ["-m", f"stages.{first.stage}", *_options(layout, first)]
    else:
        arguments = ["-m", "flows.cli", "stage", first.stage, *_options(layout, first)]
        arguments += ["--only"] if only else []
    if overrides:
        arguments += ["--", *overrides]
    return Task(_name(first), _work(jobs), tuple(arguments), resources)


def training_task(config: RunConfig, jobs: Sequence[Job], records: Records, *, keep: bool = True) -> Task:
    """Return the task that does a whole training; its configuration lies beside its records.

    Args:
        config: Named configuration with an absolute root.
        jobs: All jobs of the training.
        records: Where the configuration lies.
        keep: Write the configuration there.

    Raises:
        ConfigError: Several processes are asked for.
    """
    needed = config.launch.needed()
    if needed.processes > 1:
        raise ConfigError(
            f"a whole training is one process; {needed.processes} are asked for",
            where="launch.resources",
            mend="use --per-stage, and launch.stages.update for the stage that several processes share",
        )
    task = Task("train", _work(jobs), (), needed)
    text, file = dump_config(config), records.beside(task, _CONFIG)
    if keep:
        records.keep(task, _CONFIG, text)
    return replace(task, arguments=("-m", "flows.cli", "train", file), files={file: text})


@dataclass
class StageJobs:
    """The stages of a training, each a job.

    Args:
        dispatcher: Submits and awaits.
    """

    dispatcher: Dispatcher
    _sent: dict[str, Submitted] = field(default_factory=dict)

    def submit(self, work: Work, jobs: Sequence[Job]) -> list[Submitted]:
        """Submit every job that is not done, each after those that make its inputs.

        A platform that starts no job after others is handed none ahead of its time: see :meth:`perform`.
        """
        if not self.dispatcher.launcher.chains:
            return []
        ids: dict[str, str] = {}
        submitted = []
        for job in jobs:
            if work.made(job) is not None:
                continue
            after = dict.fromkeys(ids[one.digest] for one in job.inputs.values() if one.digest in ids)
            one = self.dispatcher.ensure(stage_task(work.config, work.layout, job, tuple(after)))
            ids[job.digest] = one.job
            self._sent[job.digest] = one
            submitted.append(one)
        return submitted

    def perform(self, work: Work, job: Job) -> Done:
        """Return a job's artifact, once a cluster's job has made it where it was not there.

        Raises:
            PivotError: The stage's own error.
            ClusterError: The cluster ended or lost the job.
        """
        found, sent = work.made(job), self._sent.pop(job.digest, None)
        if found is not None:
            if sent is not None:  # it was quicker than we: it is ending, and its record wants to know how
                self.dispatcher.wait(sent)
            return Done(job, found, cached=sent is None)
        submitted = self.dispatcher.ensure(stage_task(work.config, work.layout, job))
        raise_for(submitted, self.dispatcher.wait(submitted))
        return Done(job, self._made(work, job, submitted), cached=False)

    def _made(self, work: Work, job: Job, submitted: Submitted) -> Artifact:
        """Return what a job has made; a shared file system may show it a little later here."""
        deadline_s = time.monotonic() + self.dispatcher.vanished_s
        while (found := work.made(job)) is None:
            if time.monotonic() >= deadline_s:
                raise ArtifactError(
                    f"job {submitted.job} ended well, but its artifact is not here",
                    where=work.store.join(f"{job.prefix}/{job.digest}"),
                    mend="the job must see the same storage and run the same version of the package",
                )
            time.sleep(self.dispatcher.poll_s)
        return found


def _resources(config: RunConfig, stage: str) -> Needed:
    needed = config.launch.needed(stage)
    if needed.processes > 1 and stage not in _OVER_RANKS:
        raise ConfigError(
            f"stage {stage} is the work of one process; {needed.processes} are asked for",
            where=f"launch.stages.{stage}",
            mend=f"give nodes and ranks in launch.stages.{' and '.join(sorted(_OVER_RANKS))} only",
        )
    return needed


def _options(layout: RunLayout, job: Job) -> list[str]:
    """Return the options that name a job's run and iteration."""
    iteration = [] if job.iteration is None else [f"--iteration={job.iteration}"]
    return [f"--run={layout.uri}", *iteration]


def _work(jobs: Sequence[Job]) -> str:
    return hashlib.sha256(" ".join(job.digest for job in jobs).encode()).hexdigest()


def _name(job: Job) -> str:
    return describe(job).replace(" ", "-")
