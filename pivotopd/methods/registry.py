"""From a configuration section to its method; a new method is one file and one line here."""

from __future__ import annotations

from pivotopd.config import GrpoMethod, PivotOpdMethod
from pivotopd.methods.base import Method
from pivotopd.methods.grpo import Grpo
from pivotopd.methods.pivotopd import PivotOpd


def make_method(section: GrpoMethod | PivotOpdMethod, recovery_depth: int) -> Method:
    """Return the configured method.

    Args:
        section: The method's section of the configuration.
        recovery_depth: Recovery turns after each pivotal turn (K); only PivotOPD uses it.
    """
    match section:
        case GrpoMethod():
            return Grpo(section)
        case PivotOpdMethod():
            return PivotOpd(section, recovery_depth)
