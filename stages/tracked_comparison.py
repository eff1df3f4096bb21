"""A comparison's figures as MLflow has them, held against the artifacts that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pivotopd.tracking import experiment_of, tracking_uri
from pivotopd.tracking_read import read_metrics
from stages.compare import Member, progress_of
from stages.metrics import metrics_of

FIGURES = ("evaluate/success", "evaluate/family_mean", "evaluate/recovery_rate")


@dataclass(frozen=True, slots=True)
class TrackedFigure:
    """One figure of one evaluation.

    Attributes:
        label: Arm and seed.
        iteration: Updates behind the evaluated policy.
        name: Name of the metric.
        tracked: Its value in MLflow, or None where MLflow has none.
        stored: Its value in the evaluation's artifact, or None where there is none.
    """

    label: str
    iteration: int
    name: str
    tracked: float | None
    stored: float | None

    @property
    def agrees(self) -> bool:
        """MLflow says what the artifact says."""
        return self.tracked == self.stored


def tracked_figures(members: Sequence[Member]) -> list[TrackedFigure]:
    """Return the figures of all evaluations that MLflow or the store has, by run, iteration and name.

    Raises:
        ConfigError: MLflow cannot be read.
    """
    config = members[0].config
    uri = tracking_uri(config.tracking.uri, config.root)
    tracked = read_metrics(uri, experiment_of(config), [member.uri for member in members], FIGURES)
    figures = []
    for member in members:
        evaluations = progress_of(member, any_code=True).evaluations
        stored = {iteration: metrics_of(artifact) for iteration, artifact in evaluations.items()}
        values = tracked.get(member.uri, {})
        steps = sorted({step for history in values.values() for step in history} | set(stored))
        figures += [
            TrackedFigure(
                member.cell.label,
                step,
                name,
                values.get(name, {}).get(step),
                stored.get(step, {}).get(name),
            )
            for step in steps
            for name in FIGURES
        ]
    return [one for one in figures if one.tracked is not None or one.stored is not None]
