"""A whole run in a bucket, tracked by a real MLflow server: lineage, models, and no secret anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from pivotopd.tracking_mlflow import RUN_URI_TAG, MlflowTracker
from stages.metrics import metrics_of
from tests.chat_server import Response, serving
from tests.flows.runs import PATIENCE_S, environment_of, source
from tests.mlflow_server import MlflowServer, require_boto3
from tests.s3_server import KEY, SECRET, S3Server, environment, use_server
from tests.small_student import small_config
from tests.stages.test_bad_teacher import Server

pytestmark = pytest.mark.slow
TEACHER_KEY = "sk-Not.To-Be_Found_9876543210"
PASSWORD = "planted-password-of-mlflow"
ROOT = "s3://tests/tracked/runs"


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
    """A training whose teacher repeats its key in every second reply, an error."""
    home = tmp_path_factory.mktemp("home")
    refusal = Response({"error": {"message": f"Incorrect API key {TEACHER_KEY}"}}, 400)
    with serving(Server(refusal)) as teacher, pytest.MonkeyPatch.context() as patch:
        config = small_config(
            Path("unused"),
            student,
            update__idle_limit=5,
            evaluation__every=1,
            tracking={"model": True},
            teacher={
                "kind": "endpoint",
                "base_url": teacher.url,
                "model": "m",
                "api_key_variable": "TEACHER_KEY",
            },
        ).model_copy(update={"root": ROOT})
        (home / "config.yaml").write_text(dump_config(config))
        variables = environment_of(home) | environment(s3_server.url)
        variables |= {
            "TEACHER_KEY": TEACHER_KEY,
            "MLFLOW_TRACKING_URI": f"http://someone:{PASSWORD}@127.0.0.1:{server.port}",
            "MLFLOW_RUN_ID": "0" * 32,
            "XDG_CACHE_HOME": str(home / "cache"),
        }

        def pivotopd(*arguments: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "flows.cli", *arguments],
                cwd=source(),
                env=variables,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout + done.stderr

        said = pivotopd("train", str(home / "config.yaml"))
        other = [
            "iterations=3",
            f"launch.slurm.folder={home / 'jobs'}",
            "launch.resources.image=registry/p:1",
        ]
        for target in ("slurm", "kubernetes"):
            shown = pivotopd(
                "submit", str(home / "config.yaml"), *other, "--to", target, "--per-stage", "--dry-run"
            )
            assert "stages.rollout" in shown
            said += shown
        use_server(patch, s3_server.url)
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        found = {one.path: one for one in list_artifacts(Store(ROOT))}
        yield Trained(config, home, found, said)


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
    model = client.get_registered_model("pivotopd-alfworld-pretrained")
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


def test_who_tracks_needs_no_key_of_the_bucket(
    server: MlflowServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in environment(s3_server.url):
        monkeypatch.delenv(name, raising=False)
    tracker = MlflowTracker(server.url)
    tracker.start("keyless", experiment="keyless", tags={}, config={}, run_uri="keyless")
    tracker.log_text("report.txt", "some text")
    tracker.finish()
    fetched = client_of(server).download_artifacts(tracker.run_id, "report.txt", str(tmp_path))
    assert Path(fetched).read_text() == "some text"


def test_no_secret_stands_in_anything_that_a_run_leaves(
    trained: Trained, server: MlflowServer, tmp_path: Path
) -> None:
    """Artifacts, logs, tags, both databases, and the manifests that SLURM and Kubernetes would get."""
    blobs = Store("s3://tests").blobs
    left = {path: blobs.read(path) or b"" for path in blobs.find("")}
    assert any(path.startswith("mlflow/") for path in left)
    assert any(path.endswith("manifest.json") for path in left)
    for folder in (trained.home, server.folder):
        left |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = {path.rpartition("/")[2] for path in left}
    assert {"prefect.db", "server.db", "server.log", "config.yaml", "metrics.json"} <= names
    left["what the commands said"] = trained.said.encode()
    for secret in (TEACHER_KEY, PASSWORD, SECRET, KEY):
        assert not [path for path, data in left.items() if secret.encode() in data], secret
    told = [path for path, data in left.items() if b"TEACHER_KEY" in data]
    assert told, "the search finds what is there"
