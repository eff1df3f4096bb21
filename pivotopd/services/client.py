"""A server as an engine: what it computes is counted here, and every failure names the address."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import httpx
import tenacity
from pydantic import BaseModel, ValidationError

from pivotopd import __version__
from pivotopd.errors import ConfigError, EngineFault
from pivotopd.ledger import Counts
from pivotopd.models.base import (
    Completion,
    Nats,
    Request,
    Sampling,
    ScoreRequest,
    TokenDistributions,
    generation_counts,
)
from pivotopd.services import wire
from pivotopd.services.protocol import (
    MESSAGE,
    POLICY_HEADER,
    PROTOCOL,
    Failure,
    Health,
    Reload,
    Role,
    program_of,
)
from pivotopd.services.remote_flight import RemoteFlight

_Answer = TypeVar("_Answer")
TRIES: Final = 4
"""Times that a call is made whose connection fails; requests carry their seeds, so none is drawn twice."""
CONNECT_S: Final = 5.0
TELL_S: Final = 2.0
"""Seconds that a word without an answer of interest may take."""
_KEEP_ALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
"""A machine that vanished while it computed is noticed within about a minute; an answer may take hours."""
_MENDS: Final[dict[Role, str]] = {
    "policy": "start it: `pivotopd serve policy`; or take the address out of engine.urls",
    "teacher": "start it: `pivotopd serve teacher`; or take the address out of teacher.urls",
}
"""What to do where nothing answers that is of use."""


class RemoteEngine:
    """The engine of a server.

    Args:
        url: Address of the server, such as http://127.0.0.1:8801.
        role: What it should serve.

    Attributes:
        policy: Digest of what it should hold; a server that holds another one answers no call.
        counts: What this client had computed.
        health: What the server said of itself.

    Raises:
        ConfigError: The address is no URL.
        EngineFault: Nothing answers, or not such a server of this version.
    """

    def __init__(self, url: str, role: Role = "policy") -> None:
        self.url, self._role = url.rstrip("/"), role
        self.counts = Counts()
        transport = httpx.HTTPTransport(socket_options=_KEEP_ALIVE)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        try:
            # Proxies of the environment lead out of the cluster, not into it.
            self._http = httpx.Client(
                base_url=self.url, transport=transport, timeout=timeout, trust_env=False
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(str(error), where=url, mend="give a URL such as http://HOST:8801") from error
        try:
            self.health = self._hello()
        except BaseException:
            self._http.close()
            raise
        self.policy = self.health.policy

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return one completion a request, in order."""
        if not requests:
            return []
        message = wire.pack_requests(requests, sampling)
        found = self._whole(wire.unpack_completions(self._ask("generate", message)), requests)
        self.counts += generation_counts(requests, found)
        return found

    def begin(self, sampling: Sampling) -> RemoteFlight:
        """Return an empty flight; until it is closed the server is asked for nothing else."""
        return RemoteFlight(self.url, sampling, self._ask, self._tell, self._count)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        """Return the (R,) log-probabilities at temperature 1 of each request's response tokens."""
        if not requests:
            return []
        message = wire.pack_score_requests(requests)
        found = self._whole(wire.unpack_scores(self._ask("score", message)), requests)
        self._count_scored(requests)
        return found

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        """Return the same, and in the same pass each token's likeliest ids."""
        if not requests:
            return []
        message = wire.pack_distribution_requests(requests, top_tokens)
        answer = self._ask("score_distributions", message)
        found = self._whole(wire.unpack_distributions(answer), requests)
        self._count_scored(requests)
        return found

    def reload(self, folder: Path, policy: str) -> None:
        """Let the server load other weights in place; it reads the folder on its own machine.

        Raises:
            ArtifactError: The server does not find the folder, or it is damaged.
            EngineFault: The server cannot be reached.
        """
        wanted = Reload(folder=str(folder.resolve()), policy=policy)
        self._ask("reload", wanted.model_dump_json().encode(), checked=False)
        self.policy = policy

    def close(self) -> None:
        """Close the connections; the server stays."""
        self._http.close()

    def _count(self, counts: Counts) -> None:
        self.counts += counts

    def _count_scored(self, requests: Sequence[ScoreRequest]) -> None:
        self.counts += Counts(
            scored_rows=len(requests),
            scored_context_tokens=sum(len(one.prompt_ids) for one in requests),
            scored_tokens=sum(len(one.response_ids) for one in requests),
        )

    def _hello(self) -> Health:
        answer = self._send("GET", "health", b"", {})
        try:
            health = Health.model_validate_json(answer.content)
        except ValidationError as error:
            said = _loose_protocol(answer)
            if said is not None and said != PROTOCOL:
                raise self._of_another_version(f"protocol {said}", f"protocol {PROTOCOL}") from error
            raise self._of_no_use(f"no {self._role} server (status {answer.status_code})") from error
        if health.protocol != PROTOCOL:
            raise self._of_another_version(f"protocol {health.protocol}", f"protocol {PROTOCOL}")
        if health.version != __version__:
            raise self._of_another_version(f"version {health.version}", f"version {__version__}")
        if health.role != self._role:
            raise self._of_no_use(f"a {health.role} server, not a {self._role} server")
        return health

    def _of_no_use(self, what: str) -> EngineFault:
        return EngineFault(f"what answers is {what}", where=self.url, mend=_MENDS[self._role])

    def _of_another_version(self, theirs: str, ours: str) -> EngineFault:
        return EngineFault(
            f"the {self._role} server has {theirs}, this program {ours}",
            where=self.url,
            mend="run one version of pivotopd on every machine",
        )

    def _ask(self, call: str, message: bytes, *, checked: bool = True) -> bytes:
        headers = {"content-type": MESSAGE} | ({POLICY_HEADER: self.policy} if checked else {})
        answer = self._send("POST", call, message, headers)
        if answer.status_code == 200:
            return answer.content
        try:
            failure = Failure.model_validate_json(answer.content)
        except ValidationError as error:
            raise EngineFault(
                f"the {self._role} server failed at /{call} with status {answer.status_code}",
                where=self.url,
                mend="its own output says why",
            ) from error
        raise failure.error(self.url)

    def _send(self, method: str, call: str, message: bytes, headers: dict[str, str]) -> httpx.Response:
        """Return the answer, of whatever status; try again where the connection fails."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.TransportError),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            stop=tenacity.stop_after_attempt(TRIES),
            reraise=True,
        )
        try:
            return retrying(self._http.request, method, f"/{call}", content=message, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineFault(
                f"the {self._role} server cannot be reached: {error or type(error).__name__}",
                where=self.url,
                mend=_MENDS[self._role],
            ) from error

    def _tell(self, call: str) -> None:
        """Make a call once and wait for its answer for a moment only: a stop must not wait for a server."""
        if not self._http.is_closed:
            with suppress(httpx.HTTPError):
                self._http.post(f"/{call}", timeout=TELL_S)

    def _whole(self, found: list[_Answer], requests: Sequence[object]) -> list[_Answer]:
        if len(found) != len(requests):
            raise EngineFault(
                f"the {self._role} server gave {len(found)} answers to {len(requests)} requests",
                where=self.url,
            )
        return found


class _Spoken(BaseModel):
    program: str
    protocol: int


def _loose_protocol(answer: httpx.Response) -> int | None:
    """Return the protocol of a server whose other words are unknown; None for anything else."""
    try:
        spoken = _Spoken.model_validate_json(answer.content)
    except ValidationError:
        return None
    return spoken.protocol if spoken.program in (program_of("policy"), program_of("teacher")) else None
