"""A policy server answers as its engine does, to many at once; what is none is one clear error."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Lock, Thread

import pytest
import uvicorn

from pivotopd import __version__
from pivotopd.errors import ArtifactError, ConfigError, EngineFault
from pivotopd.models.base import Completion, Request, Sampling, ScoreRequest
from pivotopd.services.client import RemoteEngine
from pivotopd.services.protocol import PROTOCOL, Role
from pivotopd.services.server import EngineServer, bind, serve, url_of
from pivotopd.services.turns import LEASE_S
from tests.services.seeded import REQUESTS, SAMPLING, Seeded, drawn


@contextmanager
def running(engine: Seeded, role: Role = "policy", lease_s: float = LEASE_S) -> Iterator[str]:
    """Serve an engine from a thread."""
    taken = bind("127.0.0.1", 0)
    app = EngineServer(engine, "transformers", "float32", role, lease_s).app
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, args=([taken],))
    thread.start()
    try:
        yield url_of(taken)
    finally:
        server.should_exit = True
        thread.join()
        taken.close()


def test_a_server_answers_as_its_engine() -> None:
    alone = Seeded()
    rows = [ScoreRequest([1, 2], [3, 4]), ScoreRequest([5], [])]
    with running(Seeded()) as url, closing(RemoteEngine(url)) as remote:
        assert (remote.policy, remote.health.kind, remote.health.version) == (
            "a",
            "transformers",
            __version__,
        )
        assert drawn(remote.generate(REQUESTS, SAMPLING)) == drawn(alone.generate(REQUESTS, SAMPLING))
        assert [nats.tolist() for nats in remote.score(rows)] == [[-2, -2], []]
        (nats, held), _ = remote.score_distributions(rows, 2)
        assert (nats.tolist(), held.ids.tolist(), held.nats.tolist()) == (
            [-2, -2], [[0, 1], [0, 1]], [[0, -0.5], [0, -0.5]],
        )  # fmt: skip
        assert remote.generate([], SAMPLING) == []
    counts = remote.counts
    assert (counts.prompts, counts.prompt_tokens, counts.generated_tokens) == (20, 60, 60)
    assert (counts.scored_rows, counts.scored_context_tokens, counts.scored_tokens) == (4, 6, 4)


class Alone(Seeded):
    """An engine that two threads must not be in."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Lock()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        assert self.inside.acquire(blocking=False), "two calls are in the engine"
        Event().wait(0.01)
        try:
            return super().generate(requests, sampling)
        finally:
            self.inside.release()


def test_calls_that_come_at_once_reach_the_engine_one_by_one() -> None:
    with running(Alone()) as url, closing(RemoteEngine(url)) as remote, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(remote.generate, [request], SAMPLING) for request in REQUESTS]
        got = [drawn(call.result())[0] for call in calls]
    assert got == drawn(Seeded().generate(REQUESTS, SAMPLING))


def test_a_reload_changes_the_policy_for_who_asked_and_ends_who_did_not() -> None:
    with running(Seeded()) as url, closing(RemoteEngine(url)) as ours, closing(RemoteEngine(url)) as other:
        ours.reload(Path("next"), "b")
        assert ours.policy == "b"
        assert len(ours.generate(REQUESTS[:1], SAMPLING)) == 1
        with pytest.raises(EngineFault, match="holds policy b, not a") as error:
            other.generate(REQUESTS[:1], SAMPLING)
        assert url in str(error.value)


def test_a_teacher_server_answers_as_its_engine_and_keeps_its_model() -> None:
    with running(Seeded(), "teacher") as url, closing(RemoteEngine(url, "teacher")) as remote:
        assert (remote.health.role, remote.policy) == ("teacher", "a")
        assert drawn(remote.generate(REQUESTS, SAMPLING)) == drawn(Seeded().generate(REQUESTS, SAMPLING))
        with pytest.raises(EngineFault, match="keeps its model") as error:
            remote.reload(Path("next"), "b")
        assert url in str(error.value)
        assert len(remote.generate(REQUESTS[:1], SAMPLING)) == 1


@pytest.mark.parametrize(("serves", "wanted"), [("teacher", "policy"), ("policy", "teacher")])
def test_a_server_of_the_other_role_is_refused(serves: Role, wanted: Role) -> None:
    engine = Seeded()
    with (
        running(engine, serves) as url,
        pytest.raises(EngineFault, match=f"is a {serves} server, not a {wanted} server") as error,
    ):
        RemoteEngine(url, wanted)
    assert url in str(error.value)
    assert f"pivotopd serve {wanted}" in str(error.value)


def test_a_teacher_that_was_exchanged_is_noticed() -> None:
    engine = Seeded()
    with running(engine, "teacher") as url, closing(RemoteEngine(url, "teacher")) as remote:
        engine.policy = "b"
        with pytest.raises(EngineFault, match="holds teacher b, not a") as error:
            remote.generate(REQUESTS[:1], SAMPLING)
    assert "started again with another model" in str(error.value)


def test_an_error_of_the_engine_keeps_its_class_and_gains_the_address() -> None:
    with running(Seeded(loads=False, calls=0)) as url, closing(RemoteEngine(url)) as remote:
        with pytest.raises(ArtifactError, match="damaged") as error:
            remote.reload(Path("next"), "b")
        assert url in str(error.value)
        assert remote.policy == "a"
        with pytest.raises(EngineFault, match="ended"):
            remote.generate(REQUESTS[:1], SAMPLING)


def test_a_server_that_went_away_is_one_error() -> None:
    with running(Seeded()) as url:
        remote = RemoteEngine(url)
    with closing(remote), pytest.raises(EngineFault, match="cannot be reached") as error:
        remote.generate(REQUESTS[:1], SAMPLING)
    assert url in str(error.value)
    assert "pivotopd serve policy" in str(error.value)


@contextmanager
def speaking(words: bytes, status: int = 200) -> Iterator[str]:
    """Answer every GET with these words."""

    class Says(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(words)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Says)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def health(**changes: object) -> bytes:
    said = {
        "program": "pivotopd policy server", "protocol": PROTOCOL, "version": __version__,
        "kind": "vllm", "dtype": "float32", "policy": "a",
    }  # fmt: skip
    return json.dumps(said | changes).encode()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (b"<html>hello</html>", 200, "no policy server"),
        (b"not found", 404, "no policy server"),
        (b'{"ok": true}', 200, "no policy server"),
        (health(program="another"), 200, "no policy server"),
        (health(protocol=PROTOCOL + 1), 200, f"has protocol {PROTOCOL + 1}"),
        (health(protocol=PROTOCOL + 1, later="key"), 200, f"has protocol {PROTOCOL + 1}"),
        (health(version="0.0.0"), 200, "has version 0.0.0"),
    ],
)
def test_what_is_no_policy_server_of_this_version_is_refused(words: bytes, status: int, message: str) -> None:
    with speaking(words, status) as url, pytest.raises(EngineFault, match=message) as error:
        RemoteEngine(url)
    assert url in str(error.value)


def test_a_port_that_does_not_speak_http_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"SSH-2.0-Other\r\n")

        Thread(target=babble, daemon=True).start()
        with pytest.raises(EngineFault, match="cannot be reached"):
            RemoteEngine(f"http://127.0.0.1:{listener.getsockname()[1]}")
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "127.0.0.1:8801", "http://127.0.0.1:1", "http://[::"])
def test_an_address_where_nothing_is_gives_one_error(url: str) -> None:
    with pytest.raises((EngineFault, ConfigError)):
        RemoteEngine(url)


def test_a_taken_port_is_refused_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot be taken") as error:
            bind("127.0.0.1", port)
    assert f"127.0.0.1:{port}" in str(error.value)
    with pytest.raises(ConfigError, match="cannot be taken"):
        bind("127.0.0.1", 70_000)


class Refusing(socket.socket):
    """A bound address at which another process has begun to listen."""

    def listen(self, backlog: int = 0, /) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")


def test_a_port_that_was_taken_while_the_model_loaded_is_refused() -> None:
    taken = Refusing()
    taken.bind(("127.0.0.1", 0))
    server = EngineServer(Seeded(), "transformers", "float32")
    with pytest.raises(ConfigError, match="cannot listen: Address already in use"):
        serve(server, taken, lambda: None)
