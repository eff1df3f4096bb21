"""The report of a diagnosis: its figures beside those of the start policy and those that the paper published.

The published figures are of other models, on other games: they say what kind of number to expect, no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pivotopd.diagnosis.figures import Figure, Part, part_from

COLUMNS = ("", "start policy", "this policy", "95 % interval", "over", "published (other models)")
"""Columns of a part's table; the second only where the start policy is another one and was measured too."""

EXPLANATION = (
    "Intervals: 95 %, percentile bootstrap over episodes, or over mistakes for recovery. An empty cell (-) "
    "says that there was nothing to measure. Published figures are the paper's, of Qwen3 models with 1.7 to "
    "235 billion weights on ALFWorld's valid_seen."
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What was diagnosed.

    Attributes:
        run: Name of the run.
        iteration: Updates behind the policy; 0 is the start policy.
        policy: Digest of the policy.
        environment: Name and version of engine and wording.
        split: Split that was played.
        games: Fingerprint of its games.
        temperature: Sampling temperature.
        max_turns: Turn limit of an episode.
        mistakes: Fingerprint of what the known mistakes belong to.
    """

    run: str
    iteration: int
    policy: str
    environment: str
    split: str
    games: str
    temperature: float
    max_turns: int
    mistakes: str


@dataclass(frozen=True, slots=True)
class Report:
    """A whole diagnosis.

    Attributes:
        subject: What was diagnosed.
        parts: Figures, by part.
        start: Figures of the start policy by key, where it is another one and was measured.
    """

    subject: Subject
    parts: Sequence[Part]
    start: Mapping[str, Figure]


def to_json(report: Report) -> str:
    """Return a report as JSON text."""
    return json.dumps(asdict(report), indent=1) + "\n"


def from_json(text: str) -> Report:
    """Read what :func:`to_json` wrote."""
    data = json.loads(text)
    start = {key: Figure(**figure) for key, figure in data["start"].items()}
    return Report(Subject(**data["subject"]), tuple(part_from(one) for one in data["parts"]), start)


def heading(subject: Subject) -> str:
    """Return one line that says what was diagnosed."""
    which = "start policy" if subject.iteration == 0 else f"policy after {subject.iteration} updates"
    return f"Diagnosis of {subject.run}, {which}"


def columns(report: Report, part: Part) -> tuple[str, ...]:
    """Return the columns of a part's table."""
    return COLUMNS if _has_start(report, part) else (COLUMNS[0], *COLUMNS[2:])


def _has_start(report: Report, part: Part) -> bool:
    return any(one.key in report.start for one in part.figures)


def rows(report: Report, part: Part) -> list[tuple[str, ...]]:
    """Return a part's table, a row a figure, cells as text."""
    found = []
    compared = _has_start(report, part)
    for one in part.figures:
        before = report.start.get(one.key)
        start = (shown(before.value, before.unit) if before else "-",) if compared else ()
        over = "" if one.count is None else f"{one.count}"
        found.append((one.label, *start, shown(one.value, one.unit), _interval(one), over, one.published))
    return found


def shown(value: float | None, unit: str) -> str:
    """Return a number as text: shares in percent, turns with one decimal, small probabilities as powers."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "turns":
        return f"{value:.1f}"
    if unit == "probability":
        return f"{value:.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
    return f"{value:.0f}"


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{shown(figure.low, figure.unit)} to {shown(figure.high, figure.unit)}"


def markdown(report: Report, images: Mapping[str, str]) -> str:
    """Return a report as a Markdown page.

    Args:
        report: The report.
        images: Part's name to the file name of its plot.
    """
    subject = report.subject
    lines = [
        f"# {heading(subject)}",
        "",
        f"* policy `{subject.policy}`",
        f"* games: split {subject.split} of {subject.environment}, fingerprint `{subject.games}`",
        f"* temperature {subject.temperature:g}, at most {subject.max_turns} turns",
        f"* mistakes: set of fingerprint `{subject.mistakes}`",
        "",
        EXPLANATION,
    ]
    for part in report.parts:
        names = columns(report, part)
        lines += [
            "",
            f"## {part.title}",
            "",
            _line(names),
            _line(["---", *["---:"] * (len(names) - 2), "---"]),
        ]
        lines += [_line(row) for row in rows(report, part)]
        lines += ["", *(f"{note}\n" for note in part.notes)]
        if part.name in images:
            lines.append(f"![{part.title}]({images[part.name]})")
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
