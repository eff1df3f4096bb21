"""The runs of a comparison: ordinary runs, found by their digests, whose evaluations are read as they lie.

A run is complete once every evaluation that its configuration asks for is published. Runs that do not play
the same panel cannot be compared, and are refused before anything is started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pivotopd.artifacts import COMPARISONS, Artifact, RunLayout, Store, list_artifacts
from pivotopd.comparison.experiment import Cell, Experiment, cells_of
from pivotopd.comparison.launch import Start
from pivotopd.comparison.measure import Evaluated, evaluated
from pivotopd.config import PretrainedStudent, RunConfig
from pivotopd.config_files import dump_config
from pivotopd.environments.base import Environment
from pivotopd.environments.registry import open_environment
from pivotopd.errors import ConfigError
from pivotopd.records import Episode, Replay
from pivotopd.tracking import experiment_of
from stages.panel import fingerprint, panel_settings
from stages.plan import Plan
from stages.runs import named, updates_done
from stages.work import Source, Work


@dataclass(frozen=True)
class Member:
    """One run of a comparison.

    Attributes:
        cell: Its arm and seed.
        work: The run, with its configuration and store.
        plan: Its jobs.
    """

    cell: Cell
    work: Work
    plan: Plan

    @property
    def config(self) -> RunConfig:
        """The whole configuration, with the run's name."""
        return self.work.config

    @property
    def uri(self) -> str:
        """Address of the run."""
        return self.work.layout.uri

    @property
    def iterations(self) -> list[int]:
        """Evaluated iterations, in order."""
        last = self.config.iterations
        return [iteration for iteration in range(last + 1) if self.plan.evaluated(iteration)]

    @property
    def start(self) -> Start | None:
        """The warm start that the run begins with, if it has one."""
        if self.plan.start().folder is not None:
            return None
        job = self.plan.warm_start()
        return Start(job.digest, lambda: self.work.find(job) is not None)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        evaluations: Published evaluations by iteration.
        wanted: How many there will be.
        updates: Published updates.
        other_code: They were made by other code than this.
    """

    evaluations: Mapping[int, Artifact]
    wanted: int
    updates: int
    other_code: bool = False

    @property
    def complete(self) -> bool:
        """Nothing is left to do."""
        return len(self.evaluations) == self.wanted


def members_of(experiment: Experiment, path: str | Path) -> list[Member]:
    """Return the runs of an experiment, arm by arm.

    Raises:
        ConfigError: A configuration is not acceptable, two arms are the same run, or panels differ.
        ArtifactError: A model folder is missing.
    """
    opened = Opened()
    members = [member_of(cell, opened) for cell in _in_one_experiment(cells_of(experiment, path))]
    _refuse_twins(members)
    _refuse_other_panels(members)
    for member in members:
        member.plan.evaluate(member.config.iterations)  # what a run lacks is said before any run starts
    return members


def _in_one_experiment(cells: Sequence[Cell]) -> list[Cell]:
    """Give all runs the first one's MLflow experiment: a run lies only below one of its own experiment."""
    experiment = experiment_of(cells[0].config)
    return [
        replace(
            cell,
            config=cell.config.model_copy(
                update={"tracking": cell.config.tracking.model_copy(update={"experiment": experiment})}
            ),
        )
        for cell in cells
    ]


@dataclass(frozen=True, slots=True)
class Opened:
    """What runs share and is read once: games, and the weights of a start policy."""

    environments: dict[str, Environment] = field(default_factory=dict)
    students: dict[str, Source] = field(default_factory=dict)


def member_of(cell: Cell, opened: Opened) -> Member:
    """Return the run of a cell; what is open already is used again."""
    config = named(cell.config)
    layout = RunLayout(config.root, config.name or "")
    work, plan = Work(config, layout), Plan(config, layout)
    games = config.environment.model_dump_json()
    if games not in opened.environments:
        opened.environments[games] = open_environment(config.environment)
    plan.environment = opened.environments[games]
    if isinstance(config.student, PretrainedStudent):
        if config.student.path not in opened.students:
            opened.students[config.student.path] = plan.pretrained
        plan.pretrained = opened.students[config.student.path]
    return Member(cell, work, plan)


def _refuse_twins(members: Iterable[Member]) -> None:
    """Refuse two arms that resolve to one run."""
    seen: dict[str, Cell] = {}
    for member in members:
        twin = seen.setdefault(member.uri, member.cell)
        if twin is not member.cell:
            raise ConfigError(
                f"arms {twin.arm!r} and {member.cell.arm!r} are the same run",
                where=member.uri,
                mend="let them differ in a setting that makes another run; its length and speed are none",
            )


def _refuse_other_panels(members: Sequence[Member]) -> None:
    """Refuse runs that are not measured on the same games by the same rules."""
    first = members[0]
    for member in members[1:]:
        one, other = panel_fingerprint(first), panel_fingerprint(member)
        if one != other:
            raise ConfigError(
                f"{first.cell.label} and {member.cell.label} play different panels: "
                f"{one[:16]} and {other[:16]} ({_difference(first, member)})",
                where="games, engine, wording, turn limit or evaluation settings",
                mend="set environment and evaluation in the base or in `overrides`, for all arms alike",
            )


def panel_fingerprint(member: Member) -> str:
    """Return a hash of all that a measurement on the panel depends on, beside the policy."""
    return fingerprint(_panel(member))


def _panel(member: Member) -> dict[str, Any]:
    config = member.config
    games = member.plan.environment.data_fingerprint(config.environment.valid_split)
    return panel_settings(config, games)


def _difference(one: Member, other: Member) -> str:
    """Name what differs between two panels, with both values."""
    first, second = _panel(one), _panel(other)
    return "; ".join(
        f"{key}: {str(first[key])[:16]} and {str(second[key])[:16]}"
        for key in first
        if first[key] != second[key]
    )


def progress_of(member: Member, *, any_code: bool = False) -> Progress:
    """Return how far a run is.

    Args:
        member: The run.
        any_code: Where nothing of this code is there, take what other code made of the same settings.
    """
    found = {}
    for iteration in member.iterations:
        artifact = member.work.find(member.plan.evaluate(iteration))
        if artifact is not None:
            found[iteration] = artifact
    wanted = len(member.iterations)
    others = {} if found or not any_code else _of_any_code(member)
    if others:
        return Progress(others, wanted, 0, other_code=True)
    updates = min(updates_done(member.work, member.plan), member.config.iterations)
    return Progress(found, wanted, updates)


def _of_any_code(member: Member) -> dict[int, Artifact]:
    """Return the newest evaluations with these settings and games, whatever code made them."""
    found: dict[int, Artifact] = {}
    for iteration in member.iterations:
        job = member.plan.evaluate(iteration)
        same = [
            artifact
            for artifact in list_artifacts(member.work.store, job.prefix)
            if artifact.manifest.config == dict(job.reads)
            and artifact.manifest.inputs.get("data") == job.inputs["data"].digest
            and any(part.table == Replay.TABLE for part in artifact.manifest.parts)
        ]
        if same:
            found[iteration] = max(same, key=lambda artifact: artifact.manifest.created_at)
    return found


def measure(progress: Progress) -> list[Evaluated]:
    """Return the outcomes of a run's published evaluations, by iteration.

    Raises:
        ArtifactError: A table is damaged or of another version.
    """
    return [
        evaluated(
            iteration, artifact.manifest.inputs["policy"], artifact.rows(Episode), artifact.rows(Replay)
        )
        for iteration, artifact in sorted(progress.evaluations.items())
    ]


def prefix_of(experiment: Experiment) -> str:
    """Return where a comparison's report lies in its root."""
    return f"{COMPARISONS}/{experiment.name}"


def working_folder(experiment: Experiment, member: Member) -> Path:
    """Return a local folder for logs and configurations of runs: beside the report, if the root is local."""
    root = member.work.store.blobs.local_root
    if root is None:
        root = Path(tempfile.gettempdir()) / "pivotopd-comparisons"
    return root / prefix_of(experiment)


def write_config(member: Member, folder: Path) -> Path:
    """Write a run's configuration as a file for ``pivotopd train``, and return its path.

    Raises:
        StorageError: The folder cannot be written.
    """
    path = f"runs/{member.cell.label}.yaml"
    Store(str(folder)).write_text(path, dump_config(member.config))
    return folder / path


def log_of(member: Member, folder: Path) -> Path:
    """Return the file that takes the output of a run."""
    return folder / "logs" / f"{member.cell.label}.log"
