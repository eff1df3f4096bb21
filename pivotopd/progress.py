"""Progress of a stage, as a callback: done, total, and what is being done."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the work done so far."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` units of ``what`` are finished."""
        ...


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
    del what, done, total
