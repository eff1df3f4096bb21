"""A real MLflow server with its files in a bucket: lineage, models, extremes, and no secret anywhere."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.cli import app
from flows.train import jobs_of, report, tracked
from pivotopd import outbox
from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.compiled_operators import extensions_folder
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from pivotopd.exits import run_command
from pivotopd.tracking import DROPPED, PARAM_CHARACTERS, experiment_of
from pivotopd.tracking_mlflow import RUN_URI_TAG, MlflowTracker
from pivotopd.tracking_read import read_metrics
from stages.metrics import metrics_of
from stages.registering import enroll
from stages.runner import perform
from stages.runs import open_run
from stages.tracked_comparison import FIGURES
from tests.chat_server import Response, serving
from tests.fault_proxy import Fault, fault_proxy
from tests.flows.runs import PATIENCE_S, environment_of, source
from tests.mlflow_server import MlflowServer, require_boto3
from tests.s3_server import KEY, SECRET, S3Server, environment, use_server
from tests.small_student import small_config
from tests.stages.test_bad_teacher import Server

pytestmark = pytest.mark.slow
TEACHER_KEY = "sk-Not.To-Be_Found_9876543210"
SCOLDING = "Incorrect API key"
PASSWORD = "planted-password-of-mlflow"
ROOT = "s3://tests/tracked/runs"
MODEL = "pivotopd-alfworld-pretrained"


@pytest.fixture(scope="module")
def server(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    require_boto3()
    one = MlflowServer(tmp_path_factory.mktemp("mlflow"), s3_server.url)
    try:
        one.start()
        one.wait()
        yield one
    finally:
        one.stop()


@dataclass(frozen=True)
class Trained:
    """A finished run, where its process lived, and all that it and the dry runs after it said."""

    config: RunConfig
    home: Path
    artifacts: dict[str, Artifact]
    said: str


@pytest.fixture(scope="module")
def trained(
    student: Path, s3_server: S3Server, server: MlflowServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trained]:
    """A training whose teacher repeats its key in an error for the first prompt of each kind."""
    home = tmp_path_factory.mktemp("home")
    refusal = Response({"error": {"message": f"{SCOLDING} {TEACHER_KEY}"}}, 400)
    operators = str(extensions_folder())  # the machine's: to compile them takes a minute
    with serving(Server(refusal)) as teacher, pytest.MonkeyPatch.context() as patch:
        config = config_of(student, teacher.url)
        (home / "config.yaml").write_text(dump_config(config))
        secrets = {
            "TEACHER_KEY": TEACHER_KEY,
            "MLFLOW_TRACKING_URI": f"http://someone:{PASSWORD}@127.0.0.1:{server.port}",
        }
        variables = environment_of(home) | environment(s3_server.url) | secrets
        variables |= {
            "MLFLOW_RUN_ID": "0" * 32,
            "XDG_CACHE_HOME": str(home / "cache"),
            "TORCH_EXTENSIONS_DIR": operators,
        }
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "train", str(home / "config.yaml")],
            cwd=source(),
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        use_server(patch, s3_server.url, XDG_CACHE_HOME=str(home / "cache"), **secrets)
        said = done.stdout + done.stderr + "".join(dry_runs(home))
        found = {one.path: one for one in list_artifacts(Store(ROOT))}
        patch.delenv("MLFLOW_TRACKING_URI")
        yield Trained(config, home, found, said)


def config_of(student: Path, teacher: str) -> RunConfig:
    config = small_config(
        Path("unused"),
        student,
        update__idle_limit=5,
        evaluation__every=1,
        tracking={"model": True},
        teacher={"kind": "endpoint", "base_url": teacher, "model": "m", "api_key_variable": "TEACHER_KEY"},
    )
    return config.model_copy(update={"root": ROOT})


def dry_runs(home: Path) -> Iterator[str]:
    """Yield all that SLURM and Kubernetes would get of the run, made longer: one job, and a job a stage."""
    other = [f"launch.slurm.folder={home / 'jobs'}", "launch.resources.image=registry/p:1", "iterations=3"]
    for target in ("slurm", "kubernetes"):
        for form in ([], ["--per-stage"]):
            arguments = ["submit", str(home / "config.yaml"), *other, "--to", target, "--dry-run", *form]
            with redirect_stdout(StringIO()) as out, redirect_stderr(out):
                code = run_command(lambda: app(arguments, standalone_mode=False))  # noqa: B023 - called here
            assert code == 0, out.getvalue()
            assert ("stages.rollout" if form else "flows.cli") in out.getvalue()
            yield out.getvalue()


def client_of(server: MlflowServer) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=server.url)


def runs_of(server: MlflowServer) -> dict[str, Any]:
    """Return the server's runs by their address."""
    client = client_of(server)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return {run.data.tags[RUN_URI_TAG]: run for run in client.search_runs(experiments)}


def test_a_training_arrives_with_its_lineage(trained: Trained, server: MlflowServer) -> None:
    run = runs_of(server)[f"{ROOT}/small"]
    assert run.info.status == "FINISHED"
    tags = run.data.tags
    assert (tags["method"], tags["seed"]) == ("pivotopd", "0")
    assert len(tags["config_digest"]) == len(tags["data_train"]) == len(tags["data_valid"]) == 64
    assert len(tags["prefect_flow_run"]) == 36
    assert tags["git_commit"]
    logged = {
        json.loads(one.dataset.profile)["digest"]: json.loads(one.dataset.source)["uri"]
        for one in run.inputs.dataset_inputs
    }
    stages = [one for one in trained.artifacts.values() if one.manifest.stage != "checkpoint"]
    assert logged == {one.digest: one.uri for one in stages}
    files = {one.path for one in client_of(server).list_artifacts(run.info.run_id)}
    assert files == {"config.yaml", "templates.json"}
    assert run.info.artifact_uri.startswith("mlflow-artifacts:")


def test_evaluations_are_runs_below_it_with_the_artifacts_figures(
    trained: Trained, server: MlflowServer
) -> None:
    runs = runs_of(server)
    evaluations = [one for one in trained.artifacts.values() if one.manifest.stage == "evaluate"]
    assert len(evaluations) == 3
    figures = read_metrics(server.url, experiment_of(trained.config), [f"{ROOT}/small"], FIGURES)
    assert figures == {
        f"{ROOT}/small": {
            name: {
                one.manifest.iteration: metrics_of(one)[name]
                for one in evaluations
                if name in metrics_of(one)
            }
            for name in FIGURES
        }
    }
    assert len(figures[f"{ROOT}/small"]["evaluate/success"]) == 3
    for one in evaluations:
        run = runs[f"{ROOT}/small#evaluate {one.manifest.iteration:04d}"]
        assert run.data.tags["mlflow.parentRunId"] == runs[f"{ROOT}/small"].info.run_id
        assert run.data.tags["policy"] == one.manifest.inputs["policy"]
        assert run.data.metrics.items() >= metrics_of(one).items()


def test_checkpoints_are_versions_and_the_best_evaluated_is_champion(
    trained: Trained, server: MlflowServer, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    client = client_of(server)
    model = client.get_registered_model(MODEL)
    versions = sorted(
        client.search_model_versions(f"name = '{model.name}'"), key=lambda one: int(one.version)
    )
    checkpoints = {
        one.digest: one for one in trained.artifacts.values() if one.manifest.stage == "checkpoint"
    }
    assert [one.tags["pivotopd.iteration"] for one in versions] == ["0", "1"]
    assert {one.tags["pivotopd.checkpoint"] for one in versions} == set(checkpoints)
    for one in versions:
        assert one.source.startswith(checkpoints[one.tags["pivotopd.checkpoint"]].uri + "/content-")
    evaluated = {
        one.manifest.inputs["policy"]: metrics_of(one)["evaluate/success"]
        for one in trained.artifacts.values()
        if one.manifest.stage == "evaluate"
    }
    successes = [evaluated[one.tags["pivotopd.checkpoint"]] for one in versions]
    (panel,) = {name for one in versions for name in one.tags if name.startswith("pivotopd.success.")}
    assert [float(one.tags[panel]) for one in versions] == successes
    best = "2" if successes[1] > successes[0] else "1"
    assert {name: str(version) for name, version in model.aliases.items()} == {
        "candidate": "2", "champion": best
    }  # fmt: skip
    champion = client.get_model_version_by_alias(model.name, "champion")
    folder = tmp_path / "model"
    blobs = Store(ROOT).blobs
    prefix = champion.source.removeprefix(ROOT).strip("/")
    for path in blobs.find(prefix):
        target = folder / path.removeprefix(prefix).strip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(blobs.read(path) or b"")
    AutoModelForCausalLM.from_pretrained(folder)


def test_the_same_command_again_changes_nothing(
    trained: Trained, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage is taken as it lies and reported again; the tags tell of the job that does it."""
    client, address = client_of(server), f"{ROOT}/small"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    jobs = {"slurm_job": "77", "kubernetes_job": "lab/small", "kubernetes_pod": "small-x1"}
    variables = ("SLURM_JOB_ID", "PIVOTOPD_KUBERNETES_JOB", "HOSTNAME")
    for variable, value in zip(variables, jobs.values(), strict=True):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    def told() -> dict[str, Any]:
        run = runs_of(server)[address]
        names = ("evaluate/success", "update/seconds/learn", "rollout/success")
        return {
            "runs": {one.info.run_id for one in runs_of(server).values()},
            "inputs": len(run.inputs.dataset_inputs),
            "metrics": run.data.metrics,
            "steps": {
                name: [one.step for one in client.get_metric_history(run.info.run_id, name)] for name in names
            },
            "versions": {
                one.version: (one.source, one.tags, sorted(one.aliases))
                for one in client.search_model_versions(f"name = '{MODEL}'")
            },
        }

    before = told()
    work, plan = open_run(trained.config)
    with closing(work), tracked(work) as tracker:
        for job in jobs_of(plan):
            done = perform(work, job)
            assert done.cached
            report(tracker, done)
            enroll(tracker, work, done)
    assert told() == before
    assert runs_of(server)[address].data.tags.items() >= jobs.items()
    assert before["steps"]["evaluate/success"] == [0, 1, 2]
    assert len(before["versions"]) == 2


def test_who_tracks_needs_no_key_of_the_bucket(
    server: MlflowServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in environment(s3_server.url):
        monkeypatch.delenv(name, raising=False)
    tracker = started(server.url, "keyless")
    tracker.log_text("report.txt", "some text")
    tracker.finish()
    fetched = client_of(server).download_artifacts(tracker.run_id, "report.txt", str(tmp_path))
    assert Path(fetched).read_text() == "some text"


# Extremes


def started(uri: str, name: str, config: dict[str, Any] | None = None) -> MlflowTracker:
    tracker = MlflowTracker(uri)
    tracker.start(name, experiment="extremes", tags={}, config=config or {}, run_uri=f"/runs/{name}")
    return tracker


def test_sizes_names_and_numbers_in_one_run(server: MlflowServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pivotopd.tracking"):
        tracker = started(server.url, "sizes", {"long": "é" * 20_000})
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
    run = client_of(server).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert len(run.data.params["long"]) == PARAM_CHARACTERS
    taken = {"success_valid_seen_": 1.0, "a/b/__/c": 2.0, "x_y__z_": 3.0, "lead": 4.0, DROPPED: 3.0}
    assert run.data.metrics == metrics | taken


def test_a_server_that_comes_and_goes_gets_everything_in_the_end(
    server: MlflowServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Away at the start, lost answers and a proxy's pages in the middle, killed at the end."""
    monkeypatch.setattr(outbox, "PAUSES_S", (0.05, 0.2))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # somebody else's: no run of ours may go there
    steps = iter(range(100))

    def log(count: int) -> None:
        for _ in range(count):
            step = next(steps)
            tracker.log({"loss": float(step)}, step)

    with fault_proxy(server.port) as proxy, caplog.at_level(logging.WARNING, "pivotopd.tracking"):
        proxy.faults.append(Fault("reset"))
        tracker = started(proxy.url, "comes and goes", {"seed": 1})
        log(5)
        tracker.flush()
        assert tracker.run_id is None
        proxy.faults[:] = [Fault("lost_answer", "POST", "runs/create", times=1)]
        deliver(tracker)
        proxy.faults[:] = [
            Fault("lost_answer", "POST", "log-batch", times=1),
            Fault("plain_503", times=2),
            Fault("reset", times=1),
        ]
        log(5)
        deliver(tracker)
        assert all(fault.times == 0 for fault in proxy.faults)
        server.stop()
        log(5)
        tracker.log_input("rollout-0001", digest="d" * 64, uri="s3://b/x", rows=3, context="rollout")
        tracker.finish()
        server.start()
        server.wait()
        deliver(tracker)
    assert len(caplog.records) == 1, "the first trouble is one warning"
    client = client_of(server)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("extremes").experiment_id],
        f"tags.`{RUN_URI_TAG}` = '/runs/comes and goes'",
    )
    assert run.info.run_id == tracker.run_id
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "1"}
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((one.step, one.value) for one in history) == [(step, float(step)) for step in range(15)]
    assert len(run.inputs.dataset_inputs) == 1


def deliver(tracker: MlflowTracker) -> None:
    """Wait until everything has arrived; a delivery that had just failed is tried again."""
    for _ in range(20):
        if tracker._outbox.flush(60):
            return
    raise AssertionError("the deliveries do not arrive")


# Secrets


def test_no_secret_stands_in_anything_that_a_run_leaves(trained: Trained, server: MlflowServer) -> None:
    """Artifacts, logs, tags, both databases, and the manifests that SLURM and Kubernetes would get."""
    blobs = Store("s3://tests").blobs
    ours = [path for folder in ("tracked", "mlflow") for path in blobs.find(folder)]
    left = {path: blobs.read(path) or b"" for path in ours}
    for folder in (trained.home, server.folder):
        left |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    left |= {f"{path} as text": text.encode() for path, text in unpacked(left)}
    left["what the commands said"] = trained.said.encode()
    kinds = {kind for path in left for kind in KINDS if path.endswith(kind)}
    assert kinds == set(KINDS), "the search sees all of a run"
    assert any(path.startswith("mlflow/") for path in left)
    header = b64encode(f"someone:{PASSWORD}".encode()).decode()
    for secret in (TEACHER_KEY, PASSWORD, header, SECRET, KEY):
        assert not [path for path, data in left.items() if secret.encode() in data], secret
    for planted, places in {
        "TEACHER_KEY": ("config.yaml", "prefect.db as text", "server.db as text"),
        f"{SCOLDING} ": (".parquet as text",),  # what the teacher said of its key came that far
        f"127.0.0.1:{server.port}": ("prefect.db as text", "said"),  # the address, without its password
    }.items():
        told = [path for path, data in left.items() if planted.encode() in data]
        for place in places:
            assert any(path.endswith(place) for path in told), f"{planted} is to be found in {place}"


KINDS = (
    "manifest.json", "templates.json", "config.yaml", ".parquet as text", "prefect.db as text",
    "server.db as text", "server.log", "said",
)  # fmt: skip


def unpacked(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """Yield the text of tables and databases, whose bytes are compressed or in pages."""
    for path, data in files.items():
        if path.endswith(".parquet"):
            yield path, str(pq.read_table(BytesIO(data)).to_pylist())
        elif path.endswith(".db"):
            with closing(sqlite3.connect(path)) as connection:
                yield path, "\n".join(connection.iterdump())
