"""From a configuration section to its method; a new method is one file, one section and one line here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pivotopd.methods import sections
from pivotopd.methods.agentopsd import AgentOpsd
from pivotopd.methods.base import Method
from pivotopd.methods.grpo import Grpo
from pivotopd.methods.opd import Opd
from pivotopd.methods.opid import Opid
from pivotopd.methods.opsd import Opsd
from pivotopd.methods.pivotopd import PivotOpd
from pivotopd.methods.pivotrl import PivotRl
from pivotopd.methods.rlsd import Rlsd
from pivotopd.methods.sdar import Sdar
from pivotopd.methods.skill_grpo import SkillGrpo
from pivotopd.methods.skill_sd import SkillSd
from pivotopd.methods.sod import Sod
from pivotopd.methods.stepopsd import StepOpsd
from pivotopd.methods.tcod import Tcod
from pivotopd.methods.turnopd import TurnOpd


@dataclass(frozen=True, slots=True)
class Entry:
    """A method that can be configured.

    Attributes:
        name: Its name in ``method.name``.
        section: Its settings.
        kind: Its class.
        make: Builds it from its section and the recovery depth.
    """

    name: str
    section: type[sections.Settings]
    kind: type[Method]
    make: Callable[[Any, int], Method]

    @property
    def formula(self) -> str:
        """Formula, source and differences: the docstring of the method's file."""
        return (sys.modules[self.kind.__module__].__doc__ or "").strip()


def _entry(section: type[sections.Settings], kind: type[Any]) -> Entry:
    """Register a method that makes no recoveries."""
    name: str = section.model_fields["name"].default
    return Entry(name, section, kind, lambda settings, _depth: kind(settings))


ENTRIES: Mapping[type[sections.Settings], Entry] = {
    entry.section: entry
    for entry in (
        Entry("pivotopd", sections.PivotOpdMethod, PivotOpd, PivotOpd),
        _entry(sections.GrpoMethod, Grpo),
        _entry(sections.PivotRlMethod, PivotRl),
        _entry(sections.StepOpsdMethod, StepOpsd),
        _entry(sections.OpsdMethod, Opsd),
        _entry(sections.RlsdMethod, Rlsd),
        _entry(sections.SdarMethod, Sdar),
        _entry(sections.AgentOpsdMethod, AgentOpsd),
        _entry(sections.SkillGrpoMethod, SkillGrpo),
        _entry(sections.OpidMethod, Opid),
        _entry(sections.SkillSdMethod, SkillSd),
        _entry(sections.OpdMethod, Opd),
        _entry(sections.TurnOpdMethod, TurnOpd),
        _entry(sections.TcodMethod, Tcod),
        _entry(sections.SodMethod, Sod),
    )
}
"""Every method, by its section."""


def make_method(section: sections.Settings, recovery_depth: int) -> Method:
    """Return the configured method.

    Args:
        section: The method's section of the configuration.
        recovery_depth: Recovery turns after each pivotal turn (K); only PivotOPD uses it.
    """
    return ENTRIES[type(section)].make(section, recovery_depth)
