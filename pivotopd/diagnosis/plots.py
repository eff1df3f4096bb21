"""Plots of a diagnosis as PNG files; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from pivotopd.diagnosis.figures import Part
from pivotopd.diagnosis.recovery import recovered_within
from pivotopd.records_diagnosis import EpisodeReading, Recovery

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL_CHARACTERS: Final = 36
BLUE: Final = "#2563a8"
GREY: Final = "#8a8f98"
KINDS: Final = {
    "won": ("won", "#3b8f5c"),
    "no_pivot": ("failed, no pivotal mistake", "#d9a441"),
    "after_pivot": ("failed after a pivotal mistake", "#b5483a"),
    "unjudged": ("failed, not judged", GREY),
}
"""Kind of an episode to its name and colour, from left to right."""


def plot_recovery(
    rows: Sequence[Recovery], start: Sequence[Recovery] | None, max_turns: int, path: Path
) -> None:
    """Draw the share of mistakes recovered from within n turns.

    Args:
        rows: This policy's.
        start: The start policy's, where it is another one.
        max_turns: Turn limit of an episode.
        path: File to write.
    """
    canvas, axes = _axes("turns after the mistake (n)", "recovered within n turns", rows=4.0)
    if rows:
        curves = [("this policy", BLUE, rows)]
        if start:
            curves.insert(0, ("start policy", GREY, start))
        for label, colour, found in curves:
            shares = [100 * share for share in recovered_within(found, max_turns)]
            axes.step(range(max_turns + 1), shares, where="post", color=colour, label=label)
        solvable = [row.optimal_turns for row in rows if row.optimal_turns is not None]
        if solvable:
            mean = sum(solvable) / len(solvable)
            label = f"shortest way, mean {mean:.1f}"
            axes.axvline(mean, color="black", linewidth=0.8, linestyle=":", label=label)
        axes.set_xlim(0, max_turns)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0, 100)
        axes.yaxis.set_major_formatter("{x:.0f} %")
        axes.legend(frameon=False)
    else:
        _nothing(axes, "no mistake to recover from")
    _save(canvas, path)


def plot_interventions(part: Part, path: Path) -> None:
    """Draw the success of every intervention with its interval.

    Args:
        part: The part of the interventions; its shares are drawn.
        path: File to write.
    """
    found = [one for one in part.figures if one.unit == "share"]
    shown = [one for one in found if one.value is not None]
    canvas, axes = _axes("success", "", rows=0.8 + 0.5 * len(shown))
    for place, one in enumerate(reversed(shown)):
        value = 100 * (one.value or 0.0)
        axes.barh(place, value, color=BLUE, height=0.6)
        if one.low is not None and one.high is not None:
            axes.plot([100 * one.low, 100 * one.high], [place, place], color="black", linewidth=1.2)
        axes.text(value + 1, place + 0.12, f"{value:.1f} %", va="bottom", fontsize=8)
    if shown:
        axes.set_yticks(range(len(shown)), [fill(one.label, LABEL_CHARACTERS) for one in reversed(shown)])
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_formatter("{x:.0f} %")
    else:
        _nothing(axes, "no failure with a pivotal mistake")
    _save(canvas, path)


def plot_failures(rows: Sequence[EpisodeReading], start: Sequence[EpisodeReading] | None, path: Path) -> None:
    """Draw how episodes end, over all and by task type.

    Args:
        rows: This policy's.
        start: The start policy's, where it is another one.
        path: File to write.
    """
    bars = [("all, start policy", start)] if start else []
    bars.append(("all", rows))
    families = sorted({row.family for row in rows})
    bars += [(name, [row for row in rows if row.family == name]) for name in families]
    canvas, axes = _axes("episodes", "", rows=1.2 + 0.4 * len(bars))
    if rows:
        for place, (_, episodes) in enumerate(reversed(bars)):
            left = 0.0
            for kind, (_, colour) in KINDS.items():
                share = 100 * sum(row.kind == kind for row in episodes or ()) / max(1, len(episodes or ()))
                axes.barh(place, share, left=left, color=colour, height=0.6)
                left += share
        axes.set_yticks(range(len(bars)), [f"{name} ({len(found or ())})" for name, found in reversed(bars)])
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_formatter("{x:.0f} %")
        handles = [axes.barh(0, 0, color=colour, label=name) for name, colour in KINDS.values()]
        axes.legend(handles=handles, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    else:
        _nothing(axes, "no episode")
    _save(canvas, path)


def _axes(across: str, up: str, *, rows: float) -> tuple[Canvas, Axes]:
    """Return an empty drawing, ``rows`` inches high beside its labels."""
    canvas = Canvas(figsize=(7.5, rows + 0.8), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.spines[["top", "right"]].set_visible(False)
    return canvas, axes


def _nothing(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, f"nothing to show: {why}", ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _save(canvas: Canvas, path: Path) -> None:
    canvas.savefig(path, format="png", dpi=144, metadata={"Software": None})
