"""A background line of deliveries to a service that may be slow, down, or back later.

Deliveries run one after another on one thread, in order. One that fails for a passing reason is tried again
after growing pauses, and the rest waits behind it, unless it stands apart: then the others go first. One that
is refused is dropped. The first trouble is one warning; the caller is never stopped and never waits, except a
bounded time in :meth:`Outbox.flush`. Nothing outlives the process: who starts it again sends all again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger("pivotopd.tracking")

PAUSES_S = (2.0, 10.0, 60.0, 300.0)
"""Pauses before the tries after the first; the last one repeats."""
STALL_S = 30.0
"""A flush gives up after this time without a delivery: a service that hangs holds up nobody for minutes."""
WARNING_CHARACTERS = 300
MOST_WAITING = 20_000
"""Deliveries kept while the service is away; beyond it new ones are dropped."""


class Outbox:
    """Delivers calls in order on one daemon thread.

    Args:
        name: What the warnings call the service.
        refused: Says whether an error means that trying again is useless.
        secret: What no warning may repeat of an error's text; empty for nothing.
    """

    def __init__(self, name: str, refused: Callable[[Exception], bool], secret: str = "") -> None:
        self._name, self._refused, self._secret = name, refused, secret
        self._waiting: deque[tuple[Callable[[], None], bool]] = deque()
        self._change = threading.Condition()
        self._warned = False
        self._failures_in_a_row = 0
        self._failures = 0
        self._passed_over = 0
        self._ended = 0
        self._retry_at_s = 0.0
        self._hurry = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, delivery: Callable[[], None], *, apart: bool = False) -> None:
        """Add a delivery to the line.

        Args:
            delivery: What is called.
            apart: Nothing depends on it, and it may fail where others do not, such as a file whose store is
                away: where it fails, the others go first.
        """
        with self._change:
            if len(self._waiting) >= MOST_WAITING:
                self._warn("too many deliveries wait; newer ones are dropped")
                return
            self._waiting.append((delivery, apart))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pivotopd-tracking", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is delivered, a delivery fails, or the time is over; return whether all is.

        A first failure after none is tried once more. The time is over earlier where nothing at all is
        delivered for ``STALL_S`` seconds.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._change:
            last = self._failures + (1 if self._failures_in_a_row else 2)
            ended = self._ended
            stalled_s = time.monotonic() + STALL_S
            self._hurry = True
            self._change.notify_all()
            while (self._waiting or self._busy) and self._failures < last:
                if self._ended != ended:
                    ended, stalled_s = self._ended, time.monotonic() + STALL_S
                left_s = min(deadline_s, stalled_s) - time.monotonic()
                if left_s <= 0:
                    break
                self._change.wait(left_s)
            self._hurry = False
            done = not self._waiting and not self._busy
            if not done:
                self._warn(f"{len(self._waiting)} deliveries are still waiting")
            return done

    def warn(self, message: str) -> None:
        """Warn, if nothing has been warned about before."""
        with self._change:
            self._warn(message)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            if self._secret:
                message = message.replace(self._secret, "***")
            message = message if len(message) <= WARNING_CHARACTERS else f"{message[:WARNING_CHARACTERS]}..."
            logger.warning(
                "%s: %s (the run goes on and sends it when it can; what has not arrived at its end, "
                "the same command again sends; no further warning)",
                self._name,
                message,
            )

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting or self._resting():
                    rest_s = self._retry_at_s - time.monotonic() if self._waiting else None
                    self._change.wait(None if rest_s is None else max(rest_s, 0.01))
                delivery, apart = self._waiting[0]
                self._busy = True
            error = self._attempt(delivery)
            with self._change:
                self._busy = False
                if error is not None:
                    self._warn(f"{type(error).__name__}: {error}")
                if error is None or self._refused(error):
                    self._waiting.popleft()
                    self._ended += 1
                    self._passed_over = 0
                else:
                    self._put_off(apart)
                if error is None:
                    self._failures_in_a_row, self._retry_at_s = 0, 0.0
                self._change.notify_all()

    def _put_off(self, apart: bool) -> None:
        """Let the others go first where one may fail alone; pause once nothing else is left to try."""
        if apart:
            self._waiting.rotate(-1)
            self._passed_over += 1
            if self._passed_over < len(self._waiting):
                return
        self._passed_over = 0
        pause_s = PAUSES_S[min(self._failures_in_a_row, len(PAUSES_S) - 1)]
        self._failures_in_a_row += 1
        self._failures += 1
        self._retry_at_s = time.monotonic() + pause_s
        self._hurry = False

    def _resting(self) -> bool:
        return not self._hurry and time.monotonic() < self._retry_at_s

    @staticmethod
    def _attempt(delivery: Callable[[], None]) -> Exception | None:
        try:
            delivery()
        except Exception as error:
            return error
        return None
