"""A faster stock engine with the same text: four of its pure functions, remembered.

Most of the stock engine's time goes into parsing the same short grammar texts again and translating the same
problem again. Inside :func:`memoised` those results are reused; outside of it the packages are untouched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

__all__ = ["memoised", "remember_commands"]


@contextmanager
def memoised() -> Iterator[None]:
    """Let the stock engine reuse parsed templates, parsed queries and translations while this is open.

    The optimised translation, which only the planner reads, is replaced by the plain one: no plan may be
    asked of an engine that was loaded in here.
    """
    import fast_downward  # noqa: PLC0415 - part of the optional extra
    from textworld.envs.pddl import textgen  # noqa: PLC0415 - part of the optional extra

    kept = textgen._parse_and_convert, textgen.Rule, fast_downward.pddl2sas
    parse, query, translate = _cached(*kept)
    textgen._parse_and_convert = parse
    textgen.Rule = SimpleNamespace(parse_conjunctive_query=query)
    fast_downward.pddl2sas = translate
    try:
        yield
    finally:
        textgen._parse_and_convert, textgen.Rule, fast_downward.pddl2sas = kept


@lru_cache(maxsize=1)
def _cached(parse: Any, rule: Any, translate: Any) -> tuple[Callable[..., Any], ...]:
    """Return caching versions of the three functions; made once for one set of originals."""

    @lru_cache(maxsize=512)
    def symbols(text: str) -> Any:
        return parse(text, rule_name="symbols")

    def fresh_symbols(text: str, rule_name: str, **options: Any) -> Any:
        if rule_name != "symbols" or options.get("trace"):
            return parse(text, rule_name=rule_name, **options)
        return copy.deepcopy(symbols(text))  # a derivation writes its context into them

    @lru_cache(maxsize=4)  # a load and a reset translate one problem twice each
    def plain(domain: str, problem: str) -> Any:
        return translate(domain, problem)

    def translation(domain: str, problem: str, **_: Any) -> Any:
        return plain(domain, problem)

    return fresh_symbols, lru_cache(maxsize=512)(rule.parse_conjunctive_query), translation


def remember_commands(logic: Any) -> None:
    """Make a loaded game's grammar derive each command string once.

    A command's template depends on the objects it names and on where receptacles stand, and no action changes
    either. All other texts are derived anew each time.

    Args:
        logic: The ``GameLogic`` of one loaded game.
    """
    derive = logic.grammar.derive
    templates = {action.template for action in logic.actions.values()}
    known: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def remembering(start: str, context: Mapping[str, Any]) -> str:
        if start not in templates:
            return str(derive(start, context))
        key = start, tuple(sorted((slot.name, var.name) for slot, var in context["mapping"].items()))
        if key not in known:
            known[key] = str(derive(start, context))
        return known[key]

    logic.grammar.derive = remembering
