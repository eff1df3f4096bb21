"""Who has a server's engine: one call at a time, or one flight until it is closed or says nothing more.

A flight's holder may think between its calls. Where it has been silent for longer than the lease and somebody
else waits, it is passed over; it can begin again, since its requests carry their seeds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

LEASE_S: Final = 60.0
"""Seconds that a flight's client may be silent while others wait for the engine."""


class Turns:
    """Lets one in at a time. It belongs to one event loop; those that wait hold no thread.

    Args:
        lease_s: Seconds of silence after which a holder is passed over.
        clock: Seconds that only grow.

    Attributes:
        holder: Flight for which the engine is kept between turns; None for nobody.
        busy: Whether somebody is in.
    """

    def __init__(self, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s, self._clock = lease_s, clock
        self._changed = asyncio.Condition()
        self._heard_s = clock()
        self.busy = False
        self.holder: str | None = None

    @asynccontextmanager
    async def turn(self, who: str | None = None) -> AsyncIterator[None]:
        """Wait for the engine and have it alone.

        Args:
            who: Flight that asks, which may go in while the engine is kept for it. None for a single call.
        """
        async with self._changed:
            while not self._may(who):
                await self._wait()
            self.busy = True
        try:
            yield
        finally:
            async with self._changed:
                self.busy, self._heard_s = False, self._clock()
                self._changed.notify_all()

    def _may(self, who: str | None) -> bool:
        return not self.busy and (self.holder in (None, who) or self._left_s <= 0)

    @property
    def _left_s(self) -> float:
        """Seconds until the holder may be passed over."""
        return self._lease_s - (self._clock() - self._heard_s)

    async def _wait(self) -> None:
        """Wait until a turn ends, or the holder may have been silent for too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self.busy else self._left_s):
                await self._changed.wait()
