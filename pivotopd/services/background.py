"""Calls that run beside the caller, which waits for whichever ends first and can be interrupted.

The threads are daemons: an interrupted process does not wait for a server that still computes.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

_Found = TypeVar("_Found")


class Background(Generic[_Found]):
    """Calls by name, one at a time under each."""

    def __init__(self) -> None:
        self._done: SimpleQueue[tuple[str, _Found | BaseException]] = SimpleQueue()
        self.running: set[str] = set()

    def start(self, name: str, call: Callable[[], _Found]) -> None:
        """Begin a call under a name that has none."""

        def run() -> None:
            try:
                self._done.put((name, call()))
            except BaseException as error:
                self._done.put((name, error))

        self.running.add(name)
        Thread(target=run, name=f"engine {name}", daemon=True).start()

    def ended(self) -> list[tuple[str, _Found | BaseException]]:
        """Wait until a call has ended; return what each that has found or raised, in order of names."""
        found = [self._done.get()]
        try:
            while True:
                found.append(self._done.get_nowait())
        except Empty:
            self.running -= {name for name, _ in found}
            return sorted(found, key=lambda one: one[0])
