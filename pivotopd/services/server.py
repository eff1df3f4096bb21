"""An engine behind an address: generation, scoring and reloading over HTTP.

One call at a time reaches the engine; those that come meanwhile wait. So an engine's batches are those that
its clients asked for, and do not depend on who else asks at the moment. Requests in flight are such a call
too, which lasts from the first send until the flight is closed, or its client has vanished.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from pivotopd import __version__
from pivotopd.errors import ConfigError, EngineFault, PivotError
from pivotopd.models.base import PolicyEngine
from pivotopd.services import wire
from pivotopd.services.protocol import (
    FAILED,
    MESSAGE,
    POLICY_HEADER,
    PROTOCOL,
    Failure,
    Health,
    Reload,
    Role,
    program_of,
)
from pivotopd.services.server_flight import ServerFlights, gone
from pivotopd.services.turns import LEASE_S, Turns

logger = logging.getLogger(__name__)
PATIENCE_S: Final = 10
"""Seconds that calls under way may take once the server was asked to end."""
_OTHERS: Final[dict[Role, str]] = {
    "policy": "another run has reloaded it: give each run its own servers, and start again",
    "teacher": "it was started again with another model: serve the run's teacher there, and start again",
}
"""What to do where a server holds another model than a client has met there."""


class EngineServer:
    """Answers the calls of one engine's clients.

    Args:
        engine: The engine; it ends with the server.
        kind: What generates in it.
        dtype: Type of its weights.
        role: What is served; a teacher's weights are never replaced.
        lease_s: Seconds that a flight's client may be silent while others wait.
    """

    def __init__(
        self,
        engine: PolicyEngine,
        kind: Literal["transformers", "vllm"],
        dtype: Literal["float32", "bfloat16"],
        role: Role = "policy",
        lease_s: float = LEASE_S,
    ) -> None:
        self._engine, self._kind, self._dtype, self._role = engine, kind, dtype, role
        self._turns, self._flights = Turns(lease_s), ServerFlights(engine)

    @property
    def health(self) -> Health:
        """What this server is at the moment."""
        return Health(
            program=program_of(self._role),
            protocol=PROTOCOL,
            version=__version__,
            kind=self._kind,
            dtype=self._dtype,
            policy=self._engine.policy,
        )

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    @property
    def app(self) -> Starlette:
        """The routes."""
        calls: dict[str, Callable[[bytes], bytes]] = {
            "generate": self._generate,
            "score": self._score,
            "score_distributions": self._score_distributions,
        }
        asked = [Route(f"/{name}", self._endpoint(call), methods=["POST"]) for name, call in calls.items()]
        flight = "/flights/{flight:str}"
        return Starlette(
            routes=[
                Route("/health", self._say_health, methods=["GET"]),
                Route("/reload", self._endpoint(self._reload, checked=False), methods=["POST"]),
                Route(flight + "/sends/{number:int}", self._send, methods=["POST"]),
                Route(flight + "/landings/{number:int}", self._land, methods=["POST"]),
                Route(flight + "/close", self._close, methods=["POST"]),
                *asked,
            ]
        )

    def _generate(self, message: bytes) -> bytes:
        return wire.pack_completions(self._engine.generate(*wire.unpack_requests(message)))

    def _score(self, message: bytes) -> bytes:
        return wire.pack_scores(self._engine.score(wire.unpack_score_requests(message)))

    def _score_distributions(self, message: bytes) -> bytes:
        asked = wire.unpack_distribution_requests(message)
        return wire.pack_distributions(self._engine.score_distributions(*asked))

    def _reload(self, message: bytes) -> bytes:
        try:
            wanted = Reload.model_validate_json(message)
        except ValidationError as error:
            raise EngineFault("this is no request to reload", mend="use a client of this version") from error
        if self._role == "teacher":
            raise EngineFault(
                "a teacher's server keeps its model", mend="take its address out of engine.urls"
            )
        self._engine.reload(Path(wanted.folder), wanted.policy)
        logger.info("policy %s is loaded from %s", wanted.policy, wanted.folder)
        return b""

    async def _say_health(self, request: HttpRequest) -> Response:
        del request
        return _json(self.health, 200)

    def _endpoint(
        self, call: Callable[[bytes], bytes], *, checked: bool = True
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        """Return the endpoint of a call by itself."""

        def alone(message: bytes) -> bytes:
            self._flights.give_up()  # its client has been silent for too long
            return call(message)

        async def answer(request: HttpRequest) -> Response:
            return await self._in_turn(request, None, alone, checked=checked)

        return answer

    async def _send(self, request: HttpRequest) -> Response:
        flight, number = request.path_params["flight"], request.path_params["number"]
        if number and flight != self._flights.name:
            return _failed(gone())
        call = partial(self._flights.send, flight, number)
        return await self._in_turn(request, flight, call)

    async def _land(self, request: HttpRequest) -> Response:
        flight, number = request.path_params["flight"], request.path_params["number"]
        if flight != self._flights.name:
            return _failed(gone())
        return await self._in_turn(request, flight, lambda _: self._flights.land(flight, number))

    async def _close(self, request: HttpRequest) -> Response:
        """Answer at once: whoever gives up has no time. The engine lets go after its present call."""
        flight = request.path_params["flight"]
        self._flights.end(flight)
        return Response(media_type=MESSAGE, background=BackgroundTask(self._let_go, flight))

    async def _let_go(self, flight: str) -> None:
        if self._flights.ended:
            async with self._turns.turn(flight):
                await run_in_threadpool(self._flights.tidy)
                self._turns.holder = self._flights.kept

    async def _in_turn(
        self,
        request: HttpRequest,
        flight: str | None,
        call: Callable[[bytes], bytes],
        *,
        checked: bool = True,
    ) -> Response:
        """Return what a call answers once it has its turn."""
        message = await request.body()
        expected = request.headers.get(POLICY_HEADER) if checked else None

        def answered() -> bytes:
            self._check_policy(expected)
            return call(message)

        async with self._turns.turn(flight):
            try:
                found = await run_in_threadpool(answered)
            except PivotError as error:
                return _failed(error)
            finally:
                self._turns.holder = self._flights.kept
        return Response(found, media_type=MESSAGE)

    def _check_policy(self, expected: str | None) -> None:
        if expected is not None and expected != self._engine.policy:
            raise EngineFault(
                f"the server holds {self._role} {self._engine.policy[:12]}, not {expected[:12]}",
                mend=_OTHERS[self._role],
            )


def bind(host: str, port: int) -> socket.socket:
    """Take an address before anything is loaded; port 0 takes a free one.

    Raises:
        ConfigError: It cannot be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except (OSError, OverflowError) as error:
        taken.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the address cannot be taken: {reason}",
            where=f"{host}:{port}",
            mend="end what listens there, or give another --port (0 takes a free one) or --host",
        ) from error
    return taken


def url_of(taken: socket.socket) -> str:
    """Return the URL of a bound address."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Announced(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def serve(server: EngineServer, taken: socket.socket, ready: Callable[[], None]) -> None:
    """Answer calls until the process is asked to stop.

    Args:
        server: What answers.
        taken: A bound address; it is given back at the end.
        ready: Called once calls are taken.

    Raises:
        ConfigError: Another process began to listen there in the meantime.
    """
    config = uvicorn.Config(
        server.app, log_level="warning", lifespan="off", timeout_graceful_shutdown=PATIENCE_S
    )
    with taken:
        try:
            taken.listen(config.backlog)
        except OSError as error:
            raise ConfigError(
                f"the server cannot listen: {error.strerror or error}",
                where=url_of(taken),
                mend="end what listens there, or give another --port",
            ) from error
        _Announced(config, ready).run(sockets=[taken])


def _failed(error: PivotError) -> Response:
    return _json(Failure.of(error), FAILED)


def _json(said: BaseModel, status: int) -> Response:
    return Response(said.model_dump_json(), status, media_type="application/json")
