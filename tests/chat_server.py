"""A local chat endpoint that behaves as it is told, also badly, and keeps what it was sent."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers import free_ports


@dataclass(frozen=True)
class Response:
    """What the server does with a request.

    Attributes:
        body: The body, as text or JSON value.
        status: Status code.
        headers: Further headers.
        wait_s: Seconds before it answers.
        cut: Send only this many bytes of the body, then close.
    """

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    cut: int | None = None


def said(text: str | None, prompt_tokens: int = 10, reply_tokens: int = 5) -> Response:
    """A chat completion."""
    message = {"role": "assistant", "content": text, "reasoning_content": "hm"}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": reply_tokens, "total_tokens": 1}
    return Response({"id": "x", "object": "chat.completion", "usage": usage,
                     "choices": [{"index": 0, "finish_reason": "stop", "message": message}]})  # fmt: skip


@dataclass
class ChatServer:
    """The server's side of a test.

    Attributes:
        behave: Number of the request (from 0) and its body to a response, or to the text of a reply.
        url: Its base URL.
        bodies: Bodies of the chat requests.
        keys: Their Authorization headers.
        paths: Paths of all requests.
        most_at_once: Most chat requests that were in work at once.
    """

    behave: Callable[[int, dict[str, Any]], Response | str]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]

    def answer(self, body: dict[str, Any], key: str | None) -> Response:
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.keys.append(key)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            response = self.behave(number, body)
            response = said(response) if isinstance(response, str) else response
            time.sleep(response.wait_s)
            return response
        finally:
            with self._lock:
                self._now -= 1


class _Server(ThreadingHTTPServer):
    """One whose clients may go at any time: that is no news for who reads the standard error."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as it was called


@contextmanager
def serving(behave: Callable[[int, dict[str, Any]], Response | str]) -> Iterator[ChatServer]:
    """Serve on a free port until the end of the block."""
    chat = ChatServer(behave)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            chat.paths.append(self.path)
            self.send(Response({"data": []}))

        def do_POST(self) -> None:
            chat.paths.append(self.path)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send(chat.answer(body, self.headers["authorization"]))

        def send(self, response: Response) -> None:
            body = response.body if isinstance(response.body, str) else json.dumps(response.body)
            data = body.encode()
            try:
                self.send_response(response.status)
                for name, value in {"content-length": str(len(data)), **response.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data if response.cut is None else data[: response.cut])
                self.close_connection = response.cut is not None
            except OSError:  # the client has gone
                self.close_connection = True

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    """Return a port at which nothing listens."""
    return free_ports(1)[0]
