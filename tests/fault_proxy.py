"""An HTTP proxy before an S3 server that fails as asked: 503, silence, lost connections, lost answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Kind = Literal["slow_down", "plain_503", "plain_404", "hang", "reset", "lost_answer", "cut"]
"""``slow_down`` and ``plain_503`` answer 503, as S3 and as a load balancer do; ``plain_404`` a strange page;
``hang`` never answers; ``reset`` drops the connection before the server sees the request, ``lost_answer``
after it has carried it out; ``cut`` drops it in the middle of the answer's body."""
SLOW_DOWN = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""
CALM_S = 60.0


@dataclass
class Fault:
    """What happens to the requests that it fits.

    Attributes:
        kind: What happens.
        method: HTTP method that it is for; empty for all.
        part: Piece of the path and query that it is for.
        times: How many requests it meets.
        skip: How many it lets pass first.
    """

    kind: Kind
    method: str = ""
    part: str = ""
    times: int = 1_000_000
    skip: int = 0

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and self.part in path


@dataclass
class FaultProxy:
    """Forwards every request with its own ``Host``, which is signed, unless a fault meets it.

    Attributes:
        target: Port of the server.
        faults: Tried in order; the first that fits happens.
        seen: Method and path of all requests, in order of arrival.
    """

    target: int
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def met(self, method: str, path: str) -> Fault | None:
        """Note a request and return the fault that meets it."""
        with self._lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if not fault.fits(method, path):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.met(self.command, self.path)
        if fault is None:
            self._answer(*self._forward(body))
        elif fault.kind in ("slow_down", "plain_503", "plain_404"):
            page = SLOW_DOWN if fault.kind == "slow_down" else b"<html>not here</html>"
            status = 404 if fault.kind == "plain_404" else 503
            self._answer(status, {"Content-Length": str(len(page))}, page)
        elif fault.kind == "hang":
            self.proxy.closing.wait(CALM_S)
            self._drop()
        else:
            if fault.kind != "reset":
                status, headers, data = self._forward(body)
                if fault.kind == "cut":
                    self._answer(status, headers, data[: len(data) // 2])
            self._drop()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - names of the base class

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.proxy.target, timeout=CALM_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer: HTTPResponse = connection.getresponse()
            data = answer.read()
            kept = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() not in ("connection", "transfer-encoding")
            }
            if self.command != "HEAD":
                kept = {name: value for name, value in kept.items() if name.lower() != "content-length"}
                kept["Content-Length"] = str(len(data))
            return answer.status, kept, data
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def _drop(self) -> None:
        """Close with a reset: what the client reads next is 'connection reset by peer'."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True  # the client, the server or we have gone

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            return

    def log_message(self, format: str, *args: object) -> None:
        del format, args


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        del request, client_address

    def shutdown_request(self, request: object) -> None:
        try:
            super().shutdown_request(request)  # type: ignore[arg-type]  # a socket
        except OSError:
            return


@contextmanager
def fault_proxy(target: int) -> Iterator[FaultProxy]:
    """Run a proxy in front of a local port until the block ends."""
    proxy = FaultProxy(target)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            server.shutdown()
            thread.join()
