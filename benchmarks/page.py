"""The page docs/performance.md, written from the result files alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.reasons import reason_of
from benchmarks.result import Measure, bound, interval, verdict

PAGE = Path("docs/performance.md")
TEMPLATE = "performance.md.j2"
SECTIONS: Mapping[str, str] = {
    "overhead/k": "What recovery costs, over our own GRPO iteration",
    "overhead/stock": "The same with the stock engine and replay",
    "restore": "Reaching a turn again",
    "rollout": "Rollout",
    "update": "Update",
    "loss": "The loss",
    "growth": "Growth",
    "orchestration": "Orchestration",
}
"""Beginning of a name to the title of its table; the first that fits."""


def measures_of(content: Mapping[str, Any]) -> list[Measure]:
    """Return the values of a result file."""
    fields = set(Measure.__dataclass_fields__)
    return [
        Measure(**{key: value for key, value in one.items() if key in fields}) for one in content["measures"]
    ]


def sections_of(measures: Iterable[Measure]) -> dict[str, list[Measure]]:
    """Return the values by section, in the order of the page; a section without any is left out."""
    found: dict[str, list[Measure]] = {title: [] for title in SECTIONS.values()}
    for one in measures:
        title = next((title for name, title in SECTIONS.items() if one.name.startswith(name)), "More")
        found.setdefault(title, []).append(one)
    return {title: listed for title, listed in found.items() if listed}


def render(content: Mapping[str, Any], gpu: Mapping[str, Any] | None = None) -> str:
    """Return the page.

    Args:
        content: The CPU's result file.
        gpu: The GPU's, where there is one.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "interval": interval,
        "bound": bound,
        "verdict": verdict,
        "counts": _counts,
        "reason": reason_of,
    }
    measures = measures_of(content)
    return environment.get_template(TEMPLATE).render(
        content=content,
        sections=sections_of(measures),
        missed=[one for one in measures if one.met is False],
        aims=[one for one in measures if one.met and one.aim_met is False],
        gpu=None if gpu is None else {"content": gpu, "measures": measures_of(gpu)},
    )


def write_page(results: Path, page: Path) -> None:
    """Write the page from a result file, and the GPU's beside it where there is one."""
    gpu = results.with_name("gpu.json")
    content = json.loads(results.read_text(encoding="utf-8"))
    beside = json.loads(gpu.read_text(encoding="utf-8")) if gpu.exists() else None
    page.write_text(render(content, beside), encoding="utf-8")


def _counts(measure: Measure) -> str:
    """Return the counts on one line; those that are 0 are left out."""
    listed = {name: value for name, value in measure.counts.items() if value != 0}
    return ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in listed.items()) or "-"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
