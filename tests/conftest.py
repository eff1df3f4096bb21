"""Shared fixtures: where the real data lies, and quiet settings for every library."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.module_order import longest_modules_first

if TYPE_CHECKING:
    from tests.fault_proxy import FaultProxy
    from tests.s3_server import S3Server

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

# A shell that starts jobs in the background has them ignore Ctrl-C, and their children too.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that take longest."""
    items[:] = longest_modules_first(items)


LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _launchers_variables_are_left_alone() -> Iterator[None]:
    """Fail the test that leaves a launcher's variables behind, and not those whose runs would obey them."""
    before = {name: os.environ.get(name) for name in LAUNCHERS}
    yield
    after = {name: os.environ.get(name) for name in LAUNCHERS}
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    assert after == before


def _data_folder() -> Path:
    return Path(os.environ.get("PIVOTOPD_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real ALFWorld games; a test that needs it skips where it is absent."""
    folder = _data_folder()
    if not (folder / "alfworld").is_dir():
        pytest.skip(f"no real games at {folder} (set PIVOTOPD_DATA)")
    return folder


@pytest.fixture(scope="session")
def student() -> Path:
    """Folder of a small trained student; making it takes some 15 s, once a checkout."""
    from tests.small_student import small_student

    return small_student()


@pytest.fixture(scope="session")
def larger(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with the small student's tokenizer and more layers."""
    from tests.larger_model import make_larger_model

    return make_larger_model(tmp_path_factory.mktemp("larger") / "model", student)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with the bucket ``tests``; skips where it is not installed."""
    from tests.s3_server import S3Server

    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3_root(
    s3_server: S3Server, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An empty root in the bucket, with the variables that lead there; downloads are kept in ``tmp_path``."""
    from tests.s3_server import use_server

    use_server(monkeypatch, s3_server.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield f"s3://tests/{sha256(request.node.nodeid.encode()).hexdigest()[:12]}/runs"
    use_server(monkeypatch, s3_server.url)


@pytest.fixture
def s3_proxy(s3_server: S3Server, s3_root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy that fails as asked, between the clients of this test and the server; patience is short."""
    from pivotopd.object_store import PATIENCE, TIMEOUT
    from tests.fault_proxy import fault_proxy
    from tests.s3_server import use_server

    with fault_proxy(s3_server.port) as proxy:
        use_server(monkeypatch, proxy.url)
        monkeypatch.setenv(PATIENCE, "2")
        monkeypatch.setenv(TIMEOUT, "30")
        yield proxy
