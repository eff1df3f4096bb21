"""Figures of a comparison as PNG: learning curves, bars with intervals, success by task type.

Drawn on matplotlib's Agg canvas by hand, not through pyplot: no display, no state of the process.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pivotopd.comparison.measure import Summary
from pivotopd.comparison.results import Comparison
from pivotopd.diagnosis.bootstrap import Interval

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""Okabe and Ito's, told apart by colour-blind readers; beyond them, line styles and hatches differ."""
STYLES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx")
START_COLOUR = "#999999"
DPI = 120

Value = Callable[[Summary], Interval | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure.

    Attributes:
        name: File name.
        title: Title for a page.
        text: What it shows, for readers who do not see it.
        png: The image.
    """

    name: str
    title: str
    text: str
    png: bytes


def plots_of(comparison: Comparison) -> list[Plot]:
    """Return the figures of a comparison; those that have nothing to show are left out."""
    found = []
    if any(comparison.curves.values()):
        found.append(_curves(comparison))
    if comparison.finals:
        found += [_bars(comparison), _types(comparison)]
    return found


def success_of(summary: Summary) -> Interval | None:
    """Return the figure that stands for success: the mean of types."""
    return summary.family_mean


def recovery_of(summary: Summary) -> Interval | None:
    """Return the recovery rate, if there were mistakes."""
    return summary.recovery.rate if summary.recovery else None


_PANELS: tuple[tuple[str, str, Value], ...] = (
    ("success", "success, mean of types", success_of),
    ("recovery", "recovery rate", recovery_of),
)


def _curves(comparison: Comparison) -> Plot:
    """Draw success and recovery by iteration: mean and interval over seeds, and each seed thinly."""
    figure, axes = _figure(2, 11.0, 4.2)
    levels = comparison.experiment.thresholds.model_dump()
    for axis, (metric, label, value) in zip(axes, _PANELS, strict=True):
        for arm, colour, style, _ in _looks(comparison):
            for run, curve in comparison.curves_by_seed:
                if run.arm == arm:
                    x, shares = _points(curve, value)
                    axis.plot(x, [one.mean for one in shares], color=colour, alpha=0.35, lw=0.8, ls=style)
            x, shares = _points(comparison.curves[arm], value)
            mean = [one.mean for one in shares]
            axis.plot(x, mean, color=colour, lw=2.0, ls=style, marker="o", ms=3, label=arm)
            axis.fill_between(
                x, [one.low for one in shares], [one.high for one in shares], color=colour, alpha=0.15, lw=0
            )
        if levels[metric] is not None:
            axis.axhline(levels[metric], color=START_COLOUR, lw=1.0, ls=":")
        _share_axis(axis, label)
        axis.set_xlabel("iteration")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8, frameon=False)
    text = (
        "Success and recovery rate on held-out games by iteration. Thick lines: mean over seeds; bands: 95 % "
        "intervals over seeds and tasks or mistakes; thin lines: single seeds; dotted: levels."
    )
    return Plot("curves.png", "Learning curves", text, _png(figure))


def _bars(comparison: Comparison) -> Plot:
    """Draw success and recovery of every arm after training, with intervals and a dot for each seed."""
    rows = [*comparison.starts, *comparison.finals]
    figure, axes = _figure(2, 11.0, 1.2 + 0.42 * len(rows))
    looks = {arm: (colour, hatch) for arm, colour, _, hatch in _looks(comparison)}
    for axis, (_, label, value) in zip(axes, _PANELS, strict=True):
        for place, row in enumerate(rows):
            share = value(row)
            if share is None:
                axis.text(0.01, place, "no mistakes", va="center", fontsize=8, color="#555555")
                continue
            colour, hatch = looks.get(row.method, (START_COLOUR, ""))
            axis.barh(place, share.mean, color=colour, hatch=hatch, edgecolor="white")
            axis.errorbar(share.mean, place, xerr=_whiskers([share]), color="black", capsize=3, lw=1.0)
            seeds = [one for one in map(value, _by_seed(comparison, row)) if one is not None]
            axis.plot([one.mean for one in seeds], [place] * len(seeds), "o", ms=4, mfc="white", mec="black")
        axis.set_yticks(range(len(rows)), [row.method for row in rows])
        axis.invert_yaxis()
        axis.set_xlim(0.0, 1.0)
        axis.set_xlabel(label)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    text = "Success and recovery rate after training, with 95 % intervals; a circle is a seed."
    return Plot("bars.png", "After training", text, _png(figure))


def _types(comparison: Comparison) -> Plot:
    """Draw success by task type, arms side by side."""
    rows = [*comparison.starts, *comparison.finals]
    families = sorted({family for row in rows for family in row.by_family})
    figure, (axis,) = _figure(1, max(7.0, 0.35 * len(rows) * len(families) + 3.0), 4.2)
    looks = {arm: (colour, hatch) for arm, colour, _, hatch in _looks(comparison)}
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        colour, hatch = looks.get(row.method, (START_COLOUR, ""))
        shares = [row.by_family[family] for family in families]
        places = [place + (index - (len(rows) - 1) / 2) * width for place in range(len(families))]
        heights = [one.mean for one in shares]
        axis.bar(places, heights, width, color=colour, hatch=hatch, edgecolor="white", label=row.method)
        axis.errorbar(places, heights, yerr=_whiskers(shares), color="black", capsize=2, lw=0.8, ls="none")
    names = [fill(family.replace("_", " "), 16) for family in families]
    axis.set_xticks(range(len(families)), names)
    axis.tick_params(axis="x", labelsize=8)
    _share_axis(axis, "success")
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = "Success after training by task type, with 95 % intervals over seeds and tasks."
    return Plot("types.png", "Task types", text, _png(figure))


def _figure(panels: int, width_in: float, height_in: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, panels, index + 1) for index in range(panels)]


def _share_axis(axis: Axes, label: str) -> None:
    axis.set_ylim(-0.02, 1.02)
    axis.set_ylabel(label)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _looks(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Yield (arm, colour, line style, hatch), the same in every figure."""
    for index, arm in enumerate(comparison.arms):
        turn = index // len(COLOURS)
        yield arm, COLOURS[index % len(COLOURS)], STYLES[turn % len(STYLES)], HATCHES[turn % len(HATCHES)]


def _points(curve: Sequence[Summary], value: Value) -> tuple[list[int], list[Interval]]:
    found = [(one.iteration, share) for one in curve if (share := value(one)) is not None]
    return [iteration for iteration, _ in found], [share for _, share in found]


def _by_seed(comparison: Comparison, row: Summary) -> list[Summary]:
    return [one for one in comparison.finals_by_seed if one.method == row.method]


def _whiskers(shares: Sequence[Interval]) -> list[list[float]]:
    """Return matplotlib's lengths below and above; a percentile interval may lie beside its figure."""
    return [
        [max(0.0, one.mean - one.low) for one in shares],
        [max(0.0, one.high - one.mean) for one in shares],
    ]


def _png(figure: Figure) -> bytes:
    """Return a figure's PNG; no version or date in it, so equal figures are equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
