"""Metrics arrive once and under names that MLflow takes; trouble with MLflow is one warning and no more."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd import outbox
from pivotopd.config import TrackingSection
from pivotopd.errors import ConfigError
from pivotopd.tracking import (
    DROPPED,
    NAME_CHARACTERS,
    PARAM_CHARACTERS,
    NoTracker,
    RunStatus,
    clean_metrics,
    clean_name,
    flatten,
    jsonl,
    open_tracker,
    tracking_uri,
    where_to_look,
    without_password,
)
from pivotopd.tracking_mlflow import MlflowTracker

CONFIG = {"seed": 0, "recovery": {"depth": 2, "reach": "snapshot"}, "long": "x" * 9000, "nothing": None}


# Names and values


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("update/loss", "update/loss"),
        ("success[valid]", "success_valid_"),
        ("a//b/", "a/b"),
        ("/a", "a"),
        ("../a", "__/a"),
        ("a/./b", "a/_/b"),
        ("π", "_"),
        ("", "_"),
        ("clip (%)", "clip ___"),
    ],
)
def test_names(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


@settings(deadline=None)  # the first call imports MLflow
@given(st.text(max_size=400))
def test_every_name_is_taken_by_mlflow(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    cleaned = clean_name(name)
    _validate_metric_name(cleaned)
    assert 0 < len(cleaned) <= NAME_CHARACTERS
    assert clean_name(cleaned) == cleaned


def test_values_that_are_not_finite_are_dropped_and_counted() -> None:
    cleaned = clean_metrics({"a": 1.0, "b": float("nan"), "c": float("inf"), "d": -2})
    assert cleaned == {"a": 1.0, "d": -2.0, DROPPED: 2.0}
    assert clean_metrics({"a": 1.0}) == {"a": 1.0}


def test_names_that_clean_to_one_stay_apart() -> None:
    cleaned = clean_metrics({"a[": 1.0, "a]": 2.0, "a_": 3.0})
    assert sorted(cleaned.values()) == [1.0, 2.0, 3.0]
    assert cleaned["a_"] == 3.0


def test_configuration_is_flat_and_cut() -> None:
    flat = flatten(CONFIG)
    assert flat["recovery.depth"] == "2"
    assert flat["recovery.reach"] == "snapshot"
    assert flat["nothing"] == "null"
    assert len(flat["long"]) == PARAM_CHARACTERS
    assert flat["long"].endswith("…")


def test_json_lines() -> None:
    text = jsonl([{"loss": 1.5, "bad": float("nan"), "parts": [float("inf"), 2]}, {"step": 1}])
    assert [json.loads(line) for line in text.splitlines()] == [
        {"loss": 1.5, "bad": None, "parts": [None, 2]},
        {"step": 1},
    ]


def test_where_mlflow_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(None, str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(ConfigError, match="remote root") as caught:
        tracking_uri(None, "s3://bucket/runs")
    assert caught.value.where == "tracking.uri"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert tracking_uri(None, "s3://bucket/runs") == "http://host:5000"
    assert tracking_uri("http://other", "s3://bucket/runs") == "http://other"


@pytest.mark.parametrize(
    ("uri", "shown", "look"),
    [
        ("http://me:pw@host:5000/sub", "http://host:5000/sub", "http://host:5000/sub"),
        ("https://host", "https://host", "https://host"),
        (
            "sqlite:////runs/a@b.db",
            "sqlite:////runs/a@b.db",
            "mlflow ui --backend-store-uri sqlite:////runs/a@b.db",
        ),
        (
            "postgresql://me:p@w@host/db",
            "postgresql://host/db",
            "mlflow ui --backend-store-uri postgresql://host/db",
        ),
    ],
)
def test_an_address_is_shown_without_its_password(uri: str, shown: str, look: str) -> None:
    assert without_password(uri) == shown
    assert where_to_look(uri) == look
    assert MlflowTracker(shown).uri == shown


def test_a_database_is_opened_with_its_password_and_named_without(caplog: pytest.LogCaptureFixture) -> None:
    tracker = MlflowTracker("nonsense://me:planted@host/db")
    with caplog.at_level(logging.WARNING):
        tracker.start("r", experiment="e", tags={}, config={}, run_uri="u")
        tracker.finish()
    assert "MLflow at nonsense://host/db" in caplog.text
    assert "nonsense://***host/db" in caplog.text, "MLflow's own words, which repeat the address"
    assert "planted" not in caplog.text


def test_an_address_that_is_none_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:planted@[host")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        tracking_uri(None, "runs")
    assert "planted" not in str(caught.value)


def test_tracking_can_be_off() -> None:
    tracker = open_tracker(TrackingSection(enabled=False), "s3://bucket/runs")
    assert isinstance(tracker, NoTracker)
    tracker.start("r", experiment="e", tags={}, config={}, run_uri="u")
    tracker.log({"a": 1.0}, 0)
    assert tracker.child("c", tags={}) is tracker
    tracker.log_file("figure.png", b"x")
    tracker.adopt("v")
    tracker.flush()
    tracker.finish()


def test_importing_does_not_import_mlflow() -> None:
    code = "import sys, pivotopd.tracking_mlflow; raise SystemExit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=True)


# MLflow


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One sqlite file for the module: its first use takes MLflow seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/deep/mlflow.db"


@pytest.fixture
def client(database: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=database)


Start = Callable[..., MlflowTracker]


@pytest.fixture
def start(database: str, request: pytest.FixtureRequest) -> Iterator[Start]:
    def starting(config: dict[str, Any] | None = None) -> MlflowTracker:
        tracker = MlflowTracker(database)
        tracker.start(
            request.node.name,
            experiment="alfworld tiny",
            tags={"method": "pivotopd", "seed": "0"},
            config=CONFIG if config is None else config,
            run_uri=f"/runs/{request.node.name}",
        )
        return tracker

    return starting


def history(client: Any, run_id: str | None, key: str) -> list[tuple[int, float]]:
    return sorted((item.step, item.value) for item in client.get_metric_history(run_id, key))


@pytest.mark.slow
def test_a_run_arrives(start: Start, client: Any, database: str) -> None:
    tracker = start()
    tracker.log({"success[valid]": 0.25, "bad": float("nan")}, 0)
    tracker.log({"success[valid]": 0.5}, 1)
    tracker.log_text("config.yaml", "seed: 0\n")
    tracker.finish()
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "test_a_run_arrives"
    assert run.data.tags["method"] == "pivotopd"
    assert run.data.params["recovery.depth"] == "2"
    assert history(client, tracker.run_id, "success_valid_") == [(0, 0.25), (1, 0.5)]
    assert history(client, tracker.run_id, DROPPED) == [(0, 1.0)]
    beside = Path(database.removeprefix("sqlite:///")).parent / "mlflow-artifacts"
    (config,) = beside.rglob("config.yaml")
    assert config.read_text() == "seed: 0\n"


@pytest.mark.parametrize(("status", "longest_s"), [("FINISHED", 120), ("FAILED", 120), ("KILLED", 15)])
def test_a_run_that_is_asked_to_stop_waits_less_for_a_server_that_hangs(
    status: RunStatus, longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be killed before it could say that it was asked to stop."""
    waits: list[float] = []
    monkeypatch.setattr(outbox.Outbox, "put", lambda *_, **__: None)
    monkeypatch.setattr(outbox.Outbox, "flush", lambda _, timeout_s: waits.append(timeout_s))
    tracker = MlflowTracker("http://127.0.0.1:9")
    tracker.start("run", experiment="e", tags={}, config={}, run_uri="/run")
    tracker.finish(status)
    assert waits == [longest_s]


@pytest.mark.slow
def test_a_run_started_again_is_the_same_run(start: Start, client: Any) -> None:
    first = start()
    for step in range(3):
        first.log({"loss": float(step)}, step)
    first.finish("KILLED")
    assert client.get_run(first.run_id).info.status == "KILLED"
    second = start({**CONFIG, "seed": 5, "more": 1})
    for step in range(1, 5):
        second.log({"loss": float(step) + 10}, step)
    second.finish()
    assert second.run_id == first.run_id
    run = client.get_run(second.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "0"  # MLflow's parameters cannot change
    assert run.data.params["more"] == "1"
    assert history(client, second.run_id, "loss") == [(0, 0), (1, 1), (2, 2), (3, 13), (4, 14)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "it's", 'a "quoted"', """it's a "quoted" one"""])
def test_a_run_is_found_again_whatever_quotes_its_name_has(name: str, database: str, client: Any) -> None:
    ids = []
    for other in (name, f"{name} 2", name):
        tracker = MlflowTracker(database)
        address = f"/runs/{other}"
        tracker.start(other, experiment="alfworld tiny", tags={}, config={}, run_uri=address)
        tracker.finish()
        ids.append(tracker.run_id)
    assert None not in ids
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.slow
def test_one_step_is_logged_once(start: Start, client: Any) -> None:
    tracker = start()
    tracker.log({"loss": 1.0}, 0)
    tracker.log({"loss": 2.0, "other": 3.0}, 0)
    tracker.finish()
    assert history(client, tracker.run_id, "loss") == [(0, 1.0)]
    assert history(client, tracker.run_id, "other") == [(0, 3.0)]


@pytest.mark.slow
def test_a_metric_leads_to_its_rows(start: Start, client: Any) -> None:
    tracker = start()
    tracker.log_input("rollout-0003", digest="a" * 64, uri="s3://b/x", rows=7, context="rollout")
    tracker.finish()
    (found,) = client.get_run(tracker.run_id).inputs.dataset_inputs
    assert found.dataset.name == "rollout-0003"
    assert found.dataset.digest == "a" * 36
    assert json.loads(found.dataset.source) == {"uri": "s3://b/x"}
    assert json.loads(found.dataset.profile) == {"num_rows": 7, "digest": "a" * 64}
    assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "rollout")]


@pytest.mark.slow
def test_a_file_is_attached_under_its_path(start: Start, client: Any, tmp_path: Path) -> None:
    tracker = start()
    tracker.log_file("figures/curve.png", b"\x89PNG")
    tracker.log_file("report.html", b"<p>")
    tracker.flush()
    assert tracker.run_id is not None
    assert {file.path for file in client.list_artifacts(tracker.run_id)} == {"figures", "report.html"}
    fetched = client.download_artifacts(tracker.run_id, "figures/curve.png", str(tmp_path))
    assert Path(fetched).read_bytes() == b"\x89PNG"


@pytest.mark.slow
def test_a_run_of_the_same_experiment_is_adopted_by_its_address(start: Start, client: Any) -> None:
    parent = start()
    other = MlflowTracker(parent.uri)
    other.start("other", experiment="alfworld tiny", tags={}, config={}, run_uri="/runs/somebody's")
    other.finish()
    parent.adopt("/runs/somebody's")
    parent.adopt("/runs/nobody's")
    parent.finish()
    assert other.run_id is not None
    assert client.get_run(other.run_id).data.tags["mlflow.parentRunId"] == parent.run_id


@pytest.mark.slow
def test_a_child_is_its_own_run_whatever_mlflow_run_id_says(
    start: Start, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start()
    other.finish()
    monkeypatch.setenv("MLFLOW_RUN_ID", str(other.run_id))
    tracker = MlflowTracker(other.uri)
    tracker.start("parent", experiment="alfworld tiny", tags={}, config={}, run_uri="/runs/it's parent")
    child = tracker.child("evaluation-0010", tags={"split": "valid"})
    assert isinstance(child, MlflowTracker)
    child.log({"success": 0.75}, 10)
    child.finish()
    tracker.log({"loss": 1.0}, 10)
    tracker.finish()
    assert len({other.run_id, tracker.run_id, child.run_id}) == 3
    assert client.get_run(child.run_id).data.tags["mlflow.parentRunId"] == tracker.run_id
    assert history(client, child.run_id, "success") == [(10, 0.75)]
    assert client.get_run(tracker.run_id).data.metrics == {"loss": 1.0}
    again = MlflowTracker(other.uri)
    again.start("parent", experiment="alfworld tiny", tags={}, config={}, run_uri="/runs/it's parent")
    below = again.child("evaluation-0010", tags={})
    assert isinstance(below, MlflowTracker)
    again.finish()
    assert (again.run_id, below.run_id) == (tracker.run_id, child.run_id)


@pytest.mark.slow
def test_many_params_and_metrics_are_batched(start: Start, client: Any) -> None:
    tracker = start({f"key{number}": number for number in range(230)})
    tracker.log({f"metric{number}": float(number) for number in range(1205)}, 0)
    tracker.finish()
    run = client.get_run(tracker.run_id)
    assert len(run.data.params) == 230
    assert len(run.data.metrics) == 1205


@pytest.mark.slow
def test_a_server_that_is_down_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tracker = MlflowTracker(f"http://127.0.0.1:{port}")
    done = threading.Event()

    def whole_run() -> None:
        tracker.start("r", experiment="e", tags={}, config=CONFIG, run_uri="u")
        for step in range(50):
            tracker.log({"loss": 1.0}, step)
        tracker.log_text("config.yaml", "x")
        tracker.child("c", tags={}).log({"a": 1.0}, 0)
        tracker.finish()
        done.set()

    with caplog.at_level(logging.WARNING):
        threading.Thread(target=whole_run, daemon=True).start()
        assert done.wait(60), "a server that is down holds up the run"
    assert tracker.run_id is None
    assert [record.name for record in caplog.records] == ["pivotopd.tracking"]
    assert f"127.0.0.1:{port}" in caplog.text


@pytest.mark.slow
def test_a_server_that_hangs_holds_up_a_run_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes connections and never answers; a request may last a minute, and a run evaluates often."""
    monkeypatch.setattr(outbox, "STALL_S", 1.0)
    done = threading.Event()

    def whole_run() -> None:
        tracker.start("r", experiment="e", tags={}, config=CONFIG, run_uri="u")
        for step in range(50):
            child = tracker.child(f"evaluation {step}", tags={})
            child.log({"success": 1.0}, step)
            child.finish()
        tracker.finish()
        done.set()

    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.WARNING):
        tracker = MlflowTracker(f"http://127.0.0.1:{server.getsockname()[1]}")
        threading.Thread(target=whole_run, daemon=True).start()
        assert done.wait(45), "a server that hangs holds up the run"
    assert [record.name for record in caplog.records] == ["pivotopd.tracking"]
    assert "deliveries are still waiting" in caplog.text


@pytest.mark.slow
def test_a_page_instead_of_an_answer_passes(
    start: Start, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy says that the server is being updated; what was logged is not refused by that."""
    monkeypatch.setattr(outbox, "PAUSES_S", (0.01,))
    from mlflow import MlflowClient

    log_batch, pages = MlflowClient.log_batch, [1, 2]

    def in_maintenance(*arguments: Any, **options: Any) -> Any:
        if pages:
            pages.pop()
            json.loads("<html>back soon")
        return log_batch(*arguments, **options)

    tracker = start({})
    tracker.flush()
    monkeypatch.setattr(MlflowClient, "log_batch", in_maintenance)
    tracker.log({"loss": 1.0}, 0)
    deadline_s = time.monotonic() + 30
    while not tracker._outbox.flush(5) and time.monotonic() < deadline_s:
        pass
    assert not pages
    assert history(client, tracker.run_id, "loss") == [(0, 1.0)]


@pytest.mark.slow
def test_a_refused_run_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = MlflowTracker("nonsense://x")
    tracker.start("r", experiment="e", tags={}, config=CONFIG, run_uri="u")
    tracker.log({"loss": 1.0}, 0)
    tracker.finish()
    assert tracker.run_id is None
    assert len([record for record in caplog.records if record.name == "pivotopd.tracking"]) == 1


def test_logging_before_the_start_is_a_defect() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        MlflowTracker("sqlite:///x").log({"a": 1.0}, 0)


@pytest.mark.slow
def test_a_run_is_shown_below_the_one_it_belongs_to(start: Start, client: Any, tmp_path: Path) -> None:
    training = start()
    training.finish()
    for name, parent in (("below", f"/runs/{training_name(client, training)}"), ("alone", "/runs/unknown")):
        tracker = MlflowTracker(training.uri)
        tracker.start(
            name, experiment="alfworld tiny", tags={}, config={}, run_uri=f"/runs/{name}", parent_uri=parent
        )
        (tmp_path / "plots").mkdir(exist_ok=True)
        (tmp_path / "plots" / "a.png").write_bytes(b"picture")
        tracker.log_files(tmp_path / "plots")
        tracker.finish()
        tags = client.get_run(tracker.run_id).data.tags
        assert tags.get("mlflow.parentRunId") == (training.run_id if name == "below" else None)
        assert [item.path for item in client.list_artifacts(tracker.run_id)] == ["a.png"]


def training_name(client: Any, tracker: MlflowTracker) -> str:
    return str(client.get_run(tracker.run_id).info.run_name)
