"""From measured runs to a comparison: figures by arm and seed, at every evaluated iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from pivotopd.comparison.experiment import START, Experiment
from pivotopd.comparison.measure import Evaluated, Rates, Summary, first_reaching, rates_of, summarise
from pivotopd.diagnosis.bootstrap import Interval


@dataclass(frozen=True, slots=True)
class Measured:
    """One run as far as it is measured.

    Attributes:
        arm: Label of its arm.
        seed: Its seed.
        uri: Address of the run.
        iterations: Updates of the whole run.
        complete: Every evaluation is there.
        state: The same for people: complete, or what is missing and why.
        evaluations: Outcomes, by iteration.
    """

    arm: str
    seed: int
    uri: str
    iterations: int
    complete: bool
    state: str
    evaluations: tuple[Evaluated, ...]

    @property
    def last(self) -> Evaluated | None:
        """The evaluation of the finished policy, if it is there."""
        return next((one for one in self.evaluations if one.iteration == self.iterations), None)

    @property
    def first(self) -> Evaluated | None:
        """The evaluation of the start policy, if it is there."""
        return next((one for one in self.evaluations if one.iteration == 0), None)


@dataclass(frozen=True, slots=True)
class Reached:
    """When a run first reached a level.

    Attributes:
        method: Label of the arm.
        seed: The seed.
        metric: ``recovery`` or ``success``.
        level: The level.
        iteration: First evaluated iteration at it; None where it was not reached.
    """

    method: str
    seed: int
    metric: str
    level: float
    iteration: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """One figure; a line of ``results.json``.

    Attributes:
        method: Label of the arm or of the start policy.
        seed: The seed; None over seeds.
        metric: Name of the figure.
        iteration: Updates behind the policy.
        value: The figure; None where there is none, such as a level that was not reached.
        low: Lower end of its interval; None for counts.
        high: Upper end.
    """

    method: str
    seed: int | None
    metric: str
    iteration: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """Measured runs, and the figures that follow.

    Args:
        experiment: What was asked for.
        runs: Every run of it, measured or not.
    """

    experiment: Experiment
    runs: tuple[Measured, ...]

    @property
    def arms(self) -> list[str]:
        """Labels of the arms, in the file's order."""
        return list(self.experiment.methods)

    @property
    def missing(self) -> list[Measured]:
        """Runs that are not complete."""
        return [run for run in self.runs if not run.complete]

    def runs_of(self, arm: str) -> list[Measured]:
        """Return an arm's runs."""
        return [run for run in self.runs if run.arm == arm]

    @cached_property
    def starts(self) -> list[Summary]:
        """The policies before training; more than one where arms begin with different ones."""
        found: dict[str, tuple[Evaluated, list[str]]] = {}
        for run in self.runs:
            if run.first is not None:
                _, arms = found.setdefault(run.first.policy, (run.first, []))
                if run.arm not in arms:
                    arms.append(run.arm)
        alone = len(found) == 1
        return [
            summarise(START if alone else f"{START} ({', '.join(arms)})", None, [first], None)
            for first, arms in found.values()
        ]

    @cached_property
    def finals(self) -> list[Summary]:
        """Every arm after training, over its seeds; arms without a finished run are left out."""
        found = []
        for arm in self.arms:
            last = [(run, run.last) for run in self.runs_of(arm)]
            done = [(run, one) for run, one in last if one is not None]
            if done:
                reference = self._reference(arm, [run for run, _ in done])
                found.append(summarise(arm, None, [one for _, one in done], reference))
        return found

    @cached_property
    def finals_by_seed(self) -> list[Summary]:
        """Every finished run by itself."""
        return [
            summarise(run.arm, run.seed, [run.last], self._reference(run.arm, [run]))
            for run in self.runs
            if run.last is not None
        ]

    @cached_property
    def curves(self) -> dict[str, list[Summary]]:
        """Every arm at each evaluated iteration, over those of its seeds that came furthest."""
        found = {}
        for arm in self.arms:
            furthest = max((len(run.evaluations) for run in self.runs_of(arm)), default=0)
            runs = [run for run in self.runs_of(arm) if run.evaluations and len(run.evaluations) == furthest]
            found[arm] = [
                summarise(arm, None, list(together), self._reference(arm, runs))
                for together in zip(*(run.evaluations for run in runs), strict=True)
            ]
        return found

    @cached_property
    def curves_by_seed(self) -> list[tuple[Measured, list[Summary]]]:
        """Every measured run by itself, at each of its evaluated iterations."""
        return [
            (
                run,
                [
                    summarise(run.arm, run.seed, [one], self._reference(run.arm, [run]))
                    for one in run.evaluations
                ],
            )
            for run in self.runs
            if run.evaluations
        ]

    @cached_property
    def reached(self) -> list[Reached]:
        """First evaluated iteration at each level, by run; without runs that may still reach it."""
        return [
            Reached(run.arm, run.seed, metric, level, at)
            for metric, level in self.experiment.thresholds.model_dump().items()
            if level is not None
            for run, curve in self.curves_by_seed
            for at in [first_reaching(_values(curve, metric), level)]
            if at is not None or run.complete
        ]

    def results(self) -> list[Result]:
        """Return every figure: of the start, of each arm over seeds and by seed, at each iteration."""
        summaries = [*self.starts, *(one for curve in self.curves.values() for one in curve)]
        with_curve = {(one.method, one.iteration) for one in summaries}
        summaries += [one for one in self.finals if (one.method, one.iteration) not in with_curve]
        summaries += [one for _, curve in self.curves_by_seed for one in curve]
        found = [result for one in summaries for result in _results(one)]
        for one in self.reached:
            value = None if one.iteration is None else float(one.iteration)
            name = f"iterations_until_{one.metric}_{one.level:g}"
            last = max((run.iterations for run in self.runs_of(one.method)), default=0)
            found.append(Result(one.method, one.seed, name, last, value, None, None))
        return found

    def _reference(self, arm: str, runs: Sequence[Measured]) -> Rates | None:
        """Return what an arm's recovery compares with: its own start, or another arm's finished policies."""
        reference = self.experiment.reference
        if reference == START:
            return rates_of([run.first for run in runs if run.first is not None])
        if reference == arm:
            return None
        return rates_of([run.last for run in self.runs_of(reference) if run.last is not None])


def _values(curve: Sequence[Summary], metric: str) -> dict[int, float]:
    """Return a curve's values by iteration."""
    if metric == "success":
        return {one.iteration: one.family_mean.mean for one in curve}
    return {one.iteration: one.recovery.rate.mean for one in curve if one.recovery is not None}


def _results(summary: Summary) -> Iterator[Result]:
    def result(metric: str, value: Interval | float | None) -> Result:
        where = (summary.method, summary.seed, metric, summary.iteration)
        if isinstance(value, Interval):
            return Result(*where, value.mean, value.low, value.high)
        return Result(*where, None if value is None else float(value), None, None)

    yield result("seeds", summary.seeds)
    yield result("success", summary.success)
    for family, share in summary.by_family.items():
        yield result(f"success/{family}", share)
    yield result("success_mean_of_types", summary.family_mean)
    recovery = summary.recovery
    if recovery is None:
        return
    yield result("mistakes", recovery.mistakes)
    yield result("replays", recovery.replays)
    yield result("recovered", recovery.recovered)
    yield result("recovery_rate", recovery.rate)
    yield result("turns_to_recover", recovery.turns)
    if recovery.paired is not None:
        for name, count in asdict(recovery.paired).items():
            yield result(name, count)


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return results as plain values."""
    return [asdict(one) for one in results]
