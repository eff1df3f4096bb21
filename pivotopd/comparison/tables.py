"""Tables of a comparison, in the form of the paper's Table 1 and of its recovery table, as cells of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pivotopd.comparison.experiment import START
from pivotopd.comparison.measure import Recovery, Summary
from pivotopd.comparison.results import Comparison, Measured
from pivotopd.diagnosis.bootstrap import Interval

NOTHING = "-"
_RECOVERY = ("recovered", "rate, percent", "improved / worsened / unchanged", "turns to recover")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        title: What it shows.
        columns: Heads; the first column is the row's label.
        rows: Cells.
        note: What a reader must know.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown, with title and note."""
        lines = [
            f"## {self.title}",
            "",
            _line(self.columns),
            _line(["---"] + ["---:"] * (len(self.columns) - 1)),
        ]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def tables_of(comparison: Comparison) -> list[Table]:
    """Return all tables of a comparison."""
    return [
        success_table(comparison),
        recovery_table(comparison),
        *([reached_table(comparison)] if comparison.reached else []),
        seeds_table(comparison),
        runs_table(comparison),
    ]


def success_table(comparison: Comparison) -> Table:
    """Return success by task type and the unweighted mean of the types: the paper's Table 1."""
    rows = [*comparison.starts, *comparison.finals]
    families = sorted({family for row in rows for family in row.by_family})
    cells = []
    for row in rows:
        shares = [_percent(row.by_family.get(family)) for family in families]
        cells.append(
            (
                row.method,
                *shares,
                _with_interval(row.family_mean),
                _with_interval(row.success),
                _seeds(comparison, row),
            )
        )
    cells += [_absent(arm, len(families) + 3, comparison) for arm in _without(comparison)]
    return Table(
        "Success on held-out games, in percent",
        ("method", *(_words(family) for family in families), "mean of types", "all games", "seeds"),
        tuple(cells),
        "Mean over seeds. In brackets 95 % intervals: bootstrap over seeds and tasks, 4,000 draws.",
    )


def recovery_table(comparison: Comparison) -> Table:
    """Return recovery from the start policy's recorded mistakes: the paper's recovery table."""
    rows = [*comparison.starts, *comparison.finals]
    cells: list[tuple[str, ...]]
    cells = [(row.method, *_recovery_cells(row.recovery), _seeds(comparison, row)) for row in rows]
    cells += [_absent(arm, 5, comparison) for arm in _without(comparison)]
    optimal = {row.method: row.recovery.optimal for row in comparison.starts if row.recovery}
    shortest = ", ".join(f"{value:.1f}" for value in optimal.values() if value is not None)
    against = comparison.experiment.reference
    compared = "the policy before training" if against == START else f"the arm {against}"
    return Table(
        "Recovery from recorded mistakes",
        ("method", *_RECOVERY, "seeds"),
        tuple(cells),
        "Mistakes of the policy before training, each replayed several times. Improved and worsened compare "
        f"each mistake's rate, averaged over seeds, with {compared}. In brackets 95 % intervals: bootstrap "
        "over seeds and mistakes, 4,000 draws for rates and 2,000 for turns. Methods recover different "
        "mistakes, so their turns are over different sets; shortest possible over all: "
        f"{shortest or NOTHING}.",
    )


def reached_table(comparison: Comparison) -> Table:
    """Return the first evaluated iteration at which each seed reached a level."""
    levels = list(dict.fromkeys((one.metric, one.level) for one in comparison.reached))
    rows = []
    for arm in comparison.arms:
        for metric, level in levels:
            found = {
                one.seed: "not reached" if one.iteration is None else str(one.iteration)
                for one in comparison.reached
                if (one.method, one.metric, one.level) == (arm, metric, level)
            }
            cells = [found.get(seed, NOTHING) for seed in comparison.experiment.seeds]
            rows.append((arm, f"{metric} {level:g}", *cells))
    return Table(
        "Iterations until a level is reached",
        ("method", "level", *(f"seed {seed}" for seed in comparison.experiment.seeds)),
        tuple(rows),
        "First evaluated iteration at or above the level.",
    )


def seeds_table(comparison: Comparison) -> Table:
    """Return every finished run by itself."""
    rows = []
    for one in comparison.finals_by_seed:
        rows.append(
            (one.method, str(one.seed), _with_interval(one.family_mean), *_recovery_cells(one.recovery))
        )
    return Table(
        "Every seed",
        ("method", "seed", "success, mean of types", *_RECOVERY),
        tuple(rows),
        "Intervals: bootstrap over tasks and over mistakes.",
    )


def runs_table(comparison: Comparison) -> Table:
    """Return where every run lies and what is missing of it."""
    rows = tuple((run.arm, str(run.seed), run.state, run.uri) for run in comparison.runs)
    return Table("Runs", ("method", "seed", "state", "address"), rows)


def _recovery_cells(recovery: Recovery | None) -> tuple[str, str, str, str]:
    if recovery is None:
        return ("no mistakes", NOTHING, NOTHING, NOTHING)
    paired = recovery.paired
    return (
        f"{recovery.recovered} of {recovery.replays}",
        _with_interval(recovery.rate),
        NOTHING if paired is None else f"{paired.improved} / {paired.worsened} / {paired.unchanged}",
        NOTHING if recovery.turns is None else _with_interval(recovery.turns, 1.0),
    )


def _without(comparison: Comparison) -> list[str]:
    """Return the arms of which no run is finished."""
    done = {row.method for row in comparison.finals}
    return [arm for arm in comparison.arms if arm not in done]


def _absent(arm: str, columns: int, comparison: Comparison) -> tuple[str, ...]:
    wanted = len(comparison.runs_of(arm))
    return (arm, *[NOTHING] * (columns - 1), f"0 of {wanted}")


def _seeds(comparison: Comparison, row: Summary) -> str:
    wanted: Sequence[Measured] = comparison.runs_of(row.method)
    if not wanted:
        return NOTHING
    return str(row.seeds) if row.seeds == len(wanted) else f"{row.seeds} of {len(wanted)}"


def _percent(value: Interval | None) -> str:
    return NOTHING if value is None else f"{100 * value.mean:.1f}"


def _with_interval(value: Interval, scale: float = 100.0) -> str:
    return f"{scale * value.mean:.1f} [{scale * value.low:.1f}, {scale * value.high:.1f}]"


def _words(family: str) -> str:
    """Return a task type's name as words, so that a narrow head can break it."""
    return family.replace("_", " ")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
