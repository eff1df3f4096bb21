"""A server's side of requests in flight: the numbered calls of one client after the other.

A call whose answer was lost is made again with its number: what was sent is not sent twice, and what landed
is answered once more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pivotopd.errors import EngineFault, PivotError
from pivotopd.models.base import PolicyEngine, Sampling
from pivotopd.models.in_flight import InFlight, begin
from pivotopd.services import wire
from pivotopd.services.protocol import FlightGone

logger = logging.getLogger(__name__)


@dataclass
class _Flight:
    """One client's flight.

    Attributes:
        name: Its name, which the client drew.
        sampling: How its tokens are drawn.
        flying: What is in the engine.
        left: Requests that have not landed.
        sends: Sends that were taken.
        landings: Landings that were answered.
        answer: The last of these answers.
        ended: Whether its client has given it up.
    """

    name: str
    sampling: Sampling
    flying: InFlight
    left: int = 0
    sends: int = 0
    landings: int = 0
    answer: bytes = b""
    ended: bool = False


class ServerFlights:
    """The flight that is in an engine, if there is one. Each method is called by one thread at a time.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: PolicyEngine) -> None:
        self._engine = engine
        self._current: _Flight | None = None

    @property
    def name(self) -> str | None:
        """Name of the flight that may go on."""
        return None if self._current is None or self._current.ended else self._current.name

    @property
    def kept(self) -> str | None:
        """Name of the flight that the engine is kept for: it has not landed all that it sent."""
        return self.name if self._current is not None and self._current.left else None

    @property
    def ended(self) -> bool:
        """Whether the flight was given up, and is still in the engine."""
        return self._current is not None and self._current.ended

    def send(self, name: str, number: int, message: bytes) -> bytes:
        """Give the engine a send's requests; the first one of a flight begins it.

        Raises:
            FlightGone: The flight is not, or no longer, in the engine.
            EngineFault: The message is damaged, or the number is not the next one.
        """
        asked, sampling = wire.unpack_sent(message)
        current = self._begun(name, sampling) if number == 0 and self.name != name else self._known(name)
        if sampling != current.sampling:
            raise EngineFault(
                "a flight's requests are sampled in one way", mend="use a client of this version"
            )
        if number == current.sends - 1:
            return b""
        if number != current.sends:
            raise _misused(f"send {number} of a flight, where {current.sends} is due")
        try:
            current.flying.send(asked)
        except BaseException:
            self.give_up()
            raise
        current.sends, current.left = current.sends + 1, current.left + len(asked)
        return b""

    def land(self, name: str, number: int) -> bytes:
        """Wait for a landing and return it as a message.

        Raises:
            FlightGone: The flight is no longer in the engine.
            EngineFault: The number is not the next one.
        """
        current = self._known(name)
        if number == current.landings - 1:
            return current.answer
        if number != current.landings:
            raise _misused(f"landing {number} of a flight, where {current.landings} is due")
        try:
            landed = current.flying.land()
        except BaseException:
            self.give_up()
            raise
        current.answer = wire.pack_landed(landed)
        current.landings, current.left = current.landings + 1, current.left - len(landed)
        return current.answer

    def end(self, name: str) -> None:
        """Note that a flight is given up, from any thread; the engine lets go of it in the next turn."""
        current = self._current
        if current is not None and current.name == name:
            current.ended = True

    def tidy(self) -> None:
        """Let go of a flight that was given up."""
        if self.ended:
            self.give_up()

    def give_up(self) -> None:
        """Let go of whatever flight there is: another call has its turn."""
        current, self._current = self._current, None
        if current is not None:
            try:
                current.flying.close()
            except PivotError as error:
                logger.warning("requests in flight could not be dropped: %s", error.what)

    def _begun(self, name: str, sampling: Sampling) -> _Flight:
        self.give_up()
        self._current = _Flight(name, sampling, begin(self._engine, sampling))
        return self._current

    def _known(self, name: str) -> _Flight:
        if self._current is None or self.name != name:
            raise gone()
        return self._current


def gone() -> FlightGone:
    """Return the error of a flight that is not in the engine."""
    return FlightGone("the server no longer has the requests in flight", mend="send them again")


def _misused(what: str) -> EngineFault:
    return EngineFault(what, mend="use a client of this version")
