"""A client's side of requests in flight on a server: numbered calls, which may be made again.

A server that gave the requests up (its client was silent for too long, or it was started again) is sent them
once more: they carry their seeds, so the responses are the same.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pivotopd.errors import EngineFault
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Request, Sampling, generation_counts
from pivotopd.services import wire
from pivotopd.services.protocol import FlightGone

logger = logging.getLogger(__name__)


@dataclass
class RemoteFlight:
    """What this client has in flight on one server; its methods may be called from different threads.

    Args:
        url: Address of the server, for errors.
        sampling: How tokens are drawn.
        ask: Makes a call with a message and returns the answer.
        tell: Makes a call once, without waiting for long, whatever comes of it.
        count: Takes what was computed.
    """

    url: str
    sampling: Sampling
    ask: Callable[[str, bytes], bytes]
    tell: Callable[[str], None]
    count: Callable[[Counts], None]
    _flying: dict[int, Request] = field(default_factory=dict)
    _name: str = ""
    _sends: int = 0
    _landings: int = 0
    _closed: bool = False

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add requests to the server's batch.

        Raises:
            ConfigError: The sampling settings, a prompt's length or its ids do not fit the model.
            EngineFault: The server cannot be reached, or holds another policy.
        """
        if not requests:
            return
        try:
            if self._sends:
                self._post(requests)
            else:
                self._begin(self._flying | dict(requests))
        except FlightGone:
            self._begin(self._flying | dict(requests))
        self._flying.update(requests)
        self.count(Counts(rounds=1))

    def land(self) -> dict[int, Completion]:
        """Wait until some responses are complete and return them, keys ascending.

        Raises:
            NumericsError: A log-probability is not finite.
            EngineFault: The server cannot be reached, or its engine has ended.
        """
        if not self._flying:
            return {}
        landed = self._landed()
        if not landed or not landed.keys() <= self._flying.keys():
            raise EngineFault("the server gave answers that nobody asked for, or none", where=self.url)
        asked = {key: self._flying.pop(key) for key in sorted(landed)}
        counts = generation_counts(list(asked.values()), list(landed.values()))
        self.count(counts - Counts(rounds=counts.rounds))  # those were counted as they were sent
        return {key: landed[key] for key in asked}

    def close(self) -> None:
        """Let the server drop what is still in flight, without waiting for what it does."""
        self._closed = True
        self._flying.clear()
        if self._sends:
            self._sends = 0
            self.tell(f"flights/{self._name}/close")

    def _landed(self) -> dict[int, Completion]:
        while True:
            try:
                answer = self.ask(f"flights/{self._name}/landings/{self._landings}", b"")
            except FlightGone:
                if self._closed:
                    raise
                self._begin(self._flying)
                continue
            self._landings += 1
            return wire.unpack_landed(answer)

    def _begin(self, requests: Mapping[int, Request]) -> None:
        """Begin a flight of the server's with these requests; an earlier one is over."""
        if self._name:
            logger.info("%s had given up requests in flight: %d are sent again", self.url, len(requests))
        self._name, self._sends, self._landings = uuid.uuid4().hex, 0, 0
        self._post(requests)

    def _post(self, requests: Mapping[int, Request]) -> None:
        message = wire.pack_sent(requests, self.sampling)
        self.ask(f"flights/{self._name}/sends/{self._sends}", message)
        self._sends += 1
