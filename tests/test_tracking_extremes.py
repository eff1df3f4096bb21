"""What MLflow does not take as it is: sizes, names, numbers, a server that comes and goes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pivotopd import outbox
from pivotopd.tracking import DROPPED, PARAM_CHARACTERS
from pivotopd.tracking_mlflow import MlflowTracker
from tests.mlflow_server import MlflowServer

pytestmark = pytest.mark.slow


def client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def started(uri: str, name: str, config: dict[str, Any] | None = None) -> MlflowTracker:
    tracker = MlflowTracker(uri)
    tracker.start(name, experiment="extremes", tags={}, config=config or {}, run_uri=f"/runs/{name}")
    return tracker


def test_sizes_names_and_numbers_in_one_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pivotopd.tracking"):
        tracker = started(f"sqlite:///{tmp_path}/mlflow.db", "sizes", {"long": "é" * 20_000})
        metrics = {f"many/{number:05d}": number / 7 for number in range(10_000)}
        odd = {
            "success[valid_seen]": 1.0,
            "a/b/../c": 2.0,
            "x{y}(z)": 3.0,
            "//lead": 4.0,
            "nan": float("nan"),
            "up": float("inf"),
            "down": -float("inf"),
        }
        tracker.log(metrics | odd, 3)
        tracker.finish()
    assert not caplog.records, caplog.text
    run = client_of(tracker.uri).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert len(run.data.params["long"]) == PARAM_CHARACTERS
    taken = {"success_valid_seen_": 1.0, "a/b/__/c": 2.0, "x_y__z_": 3.0, "lead": 4.0, DROPPED: 3.0}
    assert run.data.metrics == metrics | taken


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A server whose bucket is not asked: nothing here attaches a file."""
    one = MlflowServer(tmp_path_factory.mktemp("server"), "http://127.0.0.1:9")
    one.start()
    one.wait()
    yield one
    one.stop()


def test_a_server_that_comes_and_goes_gets_everything_in_the_end(
    server: MlflowServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Down at the start, up, down in the middle, up, down at the end, and up once more: nothing is lost."""
    monkeypatch.setattr(outbox, "PAUSES_S", (0.1, 0.5))
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # somebody else's: no run of ours may go there
    steps = iter(range(100))

    def log(count: int) -> None:
        for _ in range(count):
            step = next(steps)
            tracker.log({"loss": float(step)}, step)

    with caplog.at_level(logging.WARNING, "pivotopd.tracking"):
        server.stop()
        tracker = started(server.url, "comes and goes", {"seed": 1})
        log(5)
        tracker.flush()
        assert tracker.run_id is None
        server.start()
        server.wait()
        deliver(tracker)
        server.stop()
        log(5)
        tracker.log_input("rollout-0001", digest="d" * 64, uri="s3://b/x", rows=3, context="rollout")
        tracker.finish()
        server.start()
        server.wait()
        deliver(tracker)
    assert len(caplog.records) == 1, "the first trouble is one warning"
    run = client_of(server.url).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "1"}
    history = client_of(server.url).get_metric_history(tracker.run_id, "loss")
    assert sorted((one.step, one.value) for one in history) == [(step, float(step)) for step in range(10)]
    assert len(run.inputs.dataset_inputs) == 1


def deliver(tracker: MlflowTracker) -> None:
    """Wait until everything has arrived; a delivery that had just failed is tried again."""
    for _ in range(20):
        if tracker._outbox.flush(60):
            return
    raise AssertionError("the deliveries do not arrive")
