"""One type for what every benchmark finds: a value with an interval, its gate, and exact counts beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

Better = Literal["more", "less"]
"""Which way a value should go."""
Count = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the result.

    Attributes:
        name: Name in the result file, such as ``overhead/k2``.
        label: What it is, for people.
        value: The median over blocks, or an exact value.
        low: Lower end of its 95 % interval; the value itself where it is exact or was measured once.
        high: Upper end.
        unit: ``x`` for a ratio, ``%`` for a share, a unit otherwise.
        better: Whether more or less is better.
        gate: What must be reached by the interval's bad end; None where the value only informs.
        aim: What is hoped for.
        clock: ``cpu``, ``wall``, ``cpu and wall`` (the worse of both) or ``counts``.
        counts: Exact counts beside it, and what the other clock says.
        note: What a reader must know.
    """

    name: str
    label: str
    value: float
    low: float
    high: float
    unit: str = "x"
    better: Better = "more"
    gate: float | None = None
    aim: float | None = None
    clock: str = "cpu"
    counts: Mapping[str, Count] = field(default_factory=dict)
    note: str = ""

    @property
    def bad_end(self) -> float:
        """The end of the interval that is judged."""
        return self.low if self.better == "more" else self.high

    @property
    def met(self) -> bool | None:
        """Whether the interval's bad end passes the gate; None without one."""
        return None if self.gate is None else self._passes(self.gate)

    @property
    def aim_met(self) -> bool | None:
        """Whether it passes the aim; None without one."""
        return None if self.aim is None else self._passes(self.aim)

    def _passes(self, bound: float) -> bool:
        return self.bad_end >= bound if self.better == "more" else self.bad_end <= bound

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with the verdicts."""
        return {**asdict(self), "met": self.met, "aim_met": self.aim_met}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A benchmark that did not run, and why: it counts as missed."""

    name: str
    reason: str


def verdict(measure: Measure) -> str:
    """Return what the gate says, in a word or two."""
    if measure.met is None:
        return "-"
    if not measure.met:
        return "MISSED"
    return "met, aim too" if measure.aim_met else "met"


def number(value: float, unit: str) -> str:
    """Return a value for people."""
    size = abs(value)
    digits = 0 if size >= 1000 or float(value).is_integer() else 1 if size >= 20 else 2 if size >= 0.1 else 4
    return f"{value:,.{digits}f}" + (f" {unit}" if unit not in ("", "x", "%") else unit)


def interval(measure: Measure) -> str:
    """Return value and interval for people."""
    text = number(measure.value, measure.unit)
    if measure.low == measure.high:
        return text
    return f"{text} [{number(measure.low, '')}, {number(measure.high, '')}]"


def bound(measure: Measure, value: float | None) -> str:
    """Return a gate or an aim for people."""
    sign = "≥" if measure.better == "more" else "≤"
    return "-" if value is None else f"{sign} {number(value, measure.unit)}"


def show(
    measures: Iterable[Measure], console: Console, title: str = "Ratios", *, judged: bool = True
) -> None:
    """Print a table; what is not judged has no verdict."""
    from rich.table import Table  # noqa: PLC0415 - the GPU's machine may have torch and transformers only

    table = Table(title=title)
    for name in ("what", "value [95 %]", "clock", "gate", "aim", "verdict"):
        table.add_column(name, justify="left" if name in ("what", "clock", "verdict") else "right")
    for one in measures:
        bounds = bound(one, one.gate), bound(one, one.aim)
        table.add_row(one.label, interval(one), one.clock, *bounds, verdict(one) if judged else "-")
    console.print(table)
