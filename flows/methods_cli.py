"""``pivotopd methods``: which methods there are, what each needs, its formula and its settings."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pivotopd.methods.base import Needs
    from pivotopd.methods.registry import Entry

_WORDS = {
    "labels": "labels",
    "recovery_depth": "recoveries",
    "gold_hint": "gold hints",
    "lesson": "lessons",
    "peer": "a successful peer",
    "action_span": "action tokens",
    "skill": "skill bank",
    "routed_skill": "analyser's skills",
    "skill_prompts": "skills in prompts",
    "larger_teacher": "larger teacher",
    "depth_cut": "rollouts cut by depth",
    "depth_probes": "probes of depth",
    "target_tokens": "token distributions",
}


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method: formula, source, settings.")] = None,
) -> None:
    """List the training methods and what each needs."""
    if name is None:
        _list_all()
    else:
        _show(_entry(name))


def needs_in_words(needs: Needs) -> str:
    """Return what a method needs beside the rollout, in a few words."""
    found = [_WORDS[item.name] for item in fields(needs) if getattr(needs, item.name)]
    return ", ".join(found) or "nothing"


def _list_all() -> None:
    from rich.console import Console
    from rich.table import Table

    from pivotopd.config import RecoverySection
    from pivotopd.methods.registry import ENTRIES

    shown = Table("method", "needs", "what it is", caption="pivotopd methods NAME: formula, source, settings")
    for entry in ENTRIES.values():
        needs = entry.make(entry.section(), RecoverySection().depth).needs
        shown.add_row(entry.name, needs_in_words(needs), _first_line(entry))
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def _show(entry: Entry) -> None:
    from pivotopd.config import RecoverySection

    needs = entry.make(entry.section(), RecoverySection().depth).needs
    typer.echo(entry.formula)
    typer.echo(f"\nNeeds: {needs_in_words(needs)}.")
    typer.echo("\nSettings:")
    for key, info in entry.section.model_fields.items():
        if key != "name":
            meaning = " ".join((info.description or "").split())
            typer.echo(f"  method.{key}={info.default}\n      {meaning}")


def _first_line(entry: Entry) -> str:
    return (entry.section.__doc__ or "").strip().splitlines()[0]


def _entry(name: str) -> Entry:
    """Return a method by its name; ConfigError for one that does not exist."""
    from difflib import get_close_matches

    from pivotopd.errors import ConfigError
    from pivotopd.methods.registry import ENTRIES

    entries = {entry.name: entry for entry in ENTRIES.values()}
    if name not in entries:
        near = get_close_matches(name, entries, n=1)
        raise ConfigError(
            f"there is no method {name!r}",
            mend=f"did you mean {near[0]!r}?" if near else "see `pivotopd methods`",
        )
    return entries[name]
