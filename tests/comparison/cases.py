"""Made-up outcomes of a comparison, small enough to be counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.comparison.experiment import Experiment
from pivotopd.comparison.measure import Evaluated, MistakeOutcome, TaskOutcome
from pivotopd.comparison.results import Measured

FAMILIES = ("pick_and_place_simple", "pick_heat_then_place_in_recep")


def outcomes(
    iteration: int, won: Sequence[float], recovered: Sequence[int], *, replays: int = 4, policy: str = "start"
) -> Evaluated:
    """Return an evaluation: tasks of two types in turn, and mistakes that need three turns at least."""
    tasks = tuple(TaskOutcome(f"task {i:02d}", FAMILIES[i % 2], share) for i, share in enumerate(won))
    mistakes = tuple(
        MistakeOutcome((f"panel/{i:02d}", "state"), replays, count, 5 * count, 3 + i)
        for i, count in enumerate(recovered)
    )
    return Evaluated(iteration, policy, tasks, mistakes)


def experiment(*arms: str, seeds: tuple[int, ...] = (0, 1), reference: str = "start") -> Experiment:
    return Experiment(
        name="made up",
        base="base.yaml",
        seeds=seeds,
        methods=dict.fromkeys(arms, ()),
        reference=reference,
    )


def run(arm: str, seed: int, *evaluations: Evaluated, iterations: int = 10) -> Measured:
    """Return a run; it is complete once its last evaluation is there."""
    complete = any(one.iteration == iterations for one in evaluations)
    state = "complete" if complete else "incomplete: 1 of 3 evaluations, 2 of 10 updates"
    return Measured(arm, seed, f"runs/{arm}-{seed}", iterations, complete, state, evaluations)
