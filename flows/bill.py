"""``pivotopd inspect RUN --cost``: what a run, or one iteration, used; as tables or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from pivotopd.bill import Bill, Cost


def show_cost(console: Console, run: str, iteration: int | None, *, as_json: bool) -> None:
    """Print the bill of a run's artifacts.

    Args:
        console: Where tables go; JSON goes to standard output as it is.
        run: Address of the run.
        iteration: Only this iteration.
        as_json: Print JSON.

    Raises:
        ArtifactError: There is no run, or nothing of the iteration.
    """
    from pivotopd.artifacts import list_artifacts
    from pivotopd.bill import bills_of, sum_of
    from pivotopd.errors import ArtifactError
    from stages.command import STAGES
    from stages.runs import find_run

    _, layout = find_run(run)
    bills = bills_of((one.manifest for one in list_artifacts(layout.store, layout.run)), STAGES)
    if iteration is not None:
        bills = [bill for bill in bills if bill.iteration == iteration]
    if not bills:
        what = "in this run" if iteration is None else f"of iteration {iteration}"
        raise ArtifactError(
            f"there is nothing {what} to pay for", where=layout.uri, mend="`pivotopd inspect RUN` lists all"
        )
    whole = sum_of(bills, STAGES)
    if as_json:
        print(json.dumps(_listed(layout.uri, bills, whole), indent=1))  # noqa: T201 - for a machine
        return
    title = "the whole run" if iteration is None else f"iteration {iteration}"
    console.print(f"{layout.uri}: bill of {title}, from {whole.total.artifacts} manifests", markup=False)
    console.print(_by_stage(whole))
    if iteration is None and len(bills) > 1:
        console.print(_by_iteration(bills, whole))
    if whole.total.incomplete:
        console.print(
            f"{whole.total.incomplete} of {whole.total.artifacts} artifacts were written before the ledger "
            "had all these counts; what they lack counts as 0, and shares are left out.",
            style="yellow",
        )


def _by_stage(bill: Bill) -> Table:
    """Return a table with a column a stage; counts that are 0 everywhere are left out."""
    from rich.table import Table

    from pivotopd.ledger import FIELDS

    costs = [*bill.stages.values(), bill.total]
    table = Table("", "count")
    for name in (*bill.stages, "total"):
        table.add_column(name, justify="right")
    last = ""
    for name, known in FIELDS.items():
        values = [getattr(cost.counts, name) for cost in costs]
        if name != "teacher_cost_millionths" and any(values):
            group = known.group if known.group != last else ""
            table.add_row(group, name, *(f"{value:,}" if value else "-" for value in values))
            last = known.group
    table.add_section()
    table.add_row("shares", "engine padding and idle", *(_percent(cost.engine_waste_share) for cost in costs))
    table.add_row("", "training padding", *(_percent(cost.training_padding_share) for cost in costs))
    if bill.total.teacher_cost is not None:
        table.add_row("cost", "teacher", *(_money(cost) for cost in costs))
    table.add_section()
    for place, phase in enumerate(bill.total.seconds):
        label = "seconds" if not place else ""
        table.add_row(
            label,
            phase,
            *(f"{cost.seconds[phase]:,.1f}" if phase in cost.seconds else "-" for cost in costs),
        )
    table.add_row("", "total", *(f"{cost.total_s:,.1f}" for cost in costs))
    return table


def _by_iteration(bills: list[Bill], whole: Bill) -> Table:
    from rich.table import Table

    columns = ("env_steps", "generated_tokens", "scored_tokens", "trained_tokens", "teacher_calls")
    table = Table("iteration")
    priced = whole.total.teacher_cost is not None
    for name in (*columns, *(("teacher cost",) if priced else ()), "padding", "engine_starts", "bytes", "s"):
        table.add_column(name, justify="right")
    for bill in (*bills, whole):
        cost = bill.total
        name = "total" if bill is whole else "before" if bill.iteration is None else str(bill.iteration)
        table.add_row(
            name,
            *(f"{getattr(cost.counts, column):,}" for column in columns),
            *((_money(cost),) if priced else ()),
            _percent(cost.engine_waste_share),
            str(cost.counts.engine_starts),
            f"{cost.counts.bytes_written:,}",
            f"{cost.total_s:,.1f}",
            end_section=bill is bills[-1],
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _money(cost: Cost) -> str:
    return "-" if cost.teacher_cost is None else f"{cost.teacher_cost:,.6g}"


def _listed(uri: str, bills: list[Bill], whole: Bill) -> Mapping[str, Any]:
    return {
        "run": uri,
        "iterations": [{"iteration": bill.iteration, **_bill(bill)} for bill in bills],
        **_bill(whole),
    }


def _bill(bill: Bill) -> dict[str, Any]:
    return {
        "stages": {name: _cost(cost) for name, cost in bill.stages.items()},
        "total": _cost(bill.total),
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "artifacts": cost.artifacts,
        "incomplete": cost.incomplete,
        "counts": cost.counts.listed(),
        "engine_waste_share": cost.engine_waste_share,
        "training_padding_share": cost.training_padding_share,
        "teacher_cost": cost.teacher_cost,
        "seconds": dict(cost.seconds),
        "total_s": cost.total_s,
    }
