"""The bill: what stages used, added up from their manifests alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pivotopd.ledger import FIELDS, Counts
from pivotopd.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Cost:
    """What some artifacts used.

    Attributes:
        artifacts: How many they are.
        counts: Their ledgers, added.
        seconds: Their seconds by phase, added.
        incomplete: How many of them were written before the ledger had all its counts.
    """

    artifacts: int
    counts: Counts
    seconds: Mapping[str, float]
    incomplete: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def engine_positions(self) -> int:
        """Positions that engines computed, padding and finished responses included.

        The first token of a response comes with its prompt, so a response costs one position less than it
        has tokens.
        """
        one = self.counts
        generated = one.prompt_tokens - one.cached_prompt_tokens + one.generated_tokens - one.prompts
        shared = one.shared_context_tokens + one.repeated_tokens
        scored = one.scored_context_tokens + one.scored_tokens - shared
        return generated + scored + one.idle_tokens + one.padded_tokens

    @property
    def engine_waste_share(self) -> float | None:
        """Share of these positions that were padding or finished responses; None where it is not known."""
        wasted = self.counts.idle_tokens + self.counts.padded_tokens
        return None if self.incomplete else _share(wasted, self.engine_positions)

    @property
    def training_padding_share(self) -> float | None:
        """Share of the learner's positions that were padding; None where it is not known."""
        padded = self.counts.training_padding_tokens
        computed = self.counts.training_input_tokens - self.counts.training_repeated_tokens + padded
        return None if self.incomplete else _share(padded, computed)

    @property
    def teacher_cost(self) -> float | None:
        """Cost of the teacher in the currency's units; None where no price is known."""
        cost = self.counts.teacher_cost_millionths
        return None if cost is None else cost / 1e6


@dataclass(frozen=True, slots=True)
class Bill:
    """Costs by stage.

    Attributes:
        iteration: Training iteration; None outside the loop, or of the sum over iterations.
        stages: Stage to its cost, in the order of the work.
    """

    iteration: int | None
    stages: Mapping[str, Cost]

    @property
    def total(self) -> Cost:
        """The stages' costs, added."""
        return _added(list(self.stages.values()))


def bills_of(manifests: Iterable[Manifest], order: Sequence[str]) -> list[Bill]:
    """Return one bill an iteration, what lies outside the loop first.

    Args:
        manifests: Manifests of stages; a stage that was done several times is paid for several times.
        order: Names of stages in the order of the work; others are left out.
    """
    found: dict[int, dict[str, list[Cost]]] = {}
    for manifest in manifests:
        if manifest.stage in order:
            at = -1 if manifest.iteration is None else manifest.iteration
            found.setdefault(at, {}).setdefault(manifest.stage, []).append(_cost(manifest))
    return [
        Bill(None if at < 0 else at, {name: _added(found[at][name]) for name in order if name in found[at]})
        for at in sorted(found)
    ]


def sum_of(bills: Sequence[Bill], order: Sequence[str]) -> Bill:
    """Return the bill of all iterations together."""
    stages = {
        name: _added([bill.stages[name] for bill in bills if name in bill.stages])
        for name in order
        if any(name in bill.stages for bill in bills)
    }
    return Bill(None, stages)


def _cost(manifest: Manifest) -> Cost:
    needed = FIELDS.keys() - {"teacher_cost_millionths"}
    return Cost(
        1, Counts.of(manifest.counts), manifest.seconds, incomplete=int(bool(needed - manifest.counts.keys()))
    )


def _added(costs: Sequence[Cost]) -> Cost:
    seconds: Counter[str] = Counter()
    for cost in costs:
        seconds.update(cost.seconds)
    return Cost(
        sum(cost.artifacts for cost in costs),
        sum((cost.counts for cost in costs), Counts()),
        dict(seconds),
        sum(cost.incomplete for cost in costs),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
