"""Figures: what a part of a diagnosis measured, each beside what the paper published for other models.

Every part's stage writes its figures as ``figures.json`` and, flattened, as metrics; the report reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pivotopd.diagnosis.bootstrap import Interval

Unit = Literal["share", "turns", "count", "probability"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a report.

    Attributes:
        key: Its metric's name below ``diagnose/``, such as ``interventions/at_the_pivot``.
        label: What it is, in words, for a table's row.
        unit: What it counts; shares and probabilities lie in [0, 1].
        value: The number; None where there was nothing to measure.
        low: Lower end of its 95 % interval, where it has one.
        high: Upper end.
        count: Over how many episodes, mistakes or turns.
        published: The paper's figure, as text, for other models; empty where there is none.
    """

    key: str
    label: str
    unit: Unit
    value: float | None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    published: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of one part of a diagnosis.

    Attributes:
        name: Short name, such as ``interventions``.
        title: Heading in the report.
        figures: In the order of the report.
        notes: Sentences that go with them: what was left out, why a cell is empty.
    """

    name: str
    title: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()


def measured(key: str, label: str, unit: Unit, interval: Interval | None, *, published: str = "") -> Figure:
    """Return the figure of an interval; an empty one where there is none."""
    if interval is None:
        return Figure(key, label, unit, None, count=0, published=published)
    return Figure(key, label, unit, interval.mean, interval.low, interval.high, interval.episodes, published)


def metrics(parts: Iterable[Part]) -> dict[str, float]:
    """Return figures as flat metrics, with ``/low`` and ``/high`` of intervals; empty ones are left out."""
    found: dict[str, float] = {}
    for part in parts:
        for one in part.figures:
            if one.value is not None:
                found[f"diagnose/{one.key}"] = one.value
            if one.low is not None and one.high is not None:
                found[f"diagnose/{one.key}/low"], found[f"diagnose/{one.key}/high"] = one.low, one.high
    return found


def to_json(part: Part) -> str:
    """Return a part as JSON text."""
    return json.dumps(asdict(part), indent=1) + "\n"


def from_json(text: str) -> Part:
    """Read what :func:`to_json` wrote."""
    return part_from(json.loads(text))


def part_from(data: Mapping[str, Any]) -> Part:
    """Return a part of its plain values."""
    figures = tuple(Figure(**one) for one in data["figures"])
    return Part(data["name"], data["title"], figures, tuple(data["notes"]))
