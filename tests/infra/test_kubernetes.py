"""What lies in infra/kubernetes renders with kustomize and is valid, and is what `submit` would hand over."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from pivotopd.config_files import load_config
from tests.kubernetes_tools import kustomize, module, validate

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra" / "kubernetes"
OVERLAYS = ("local", "h100")
JOBS = {"train", "rollout", "label", "recover", "update", "evaluate", "update-nodes"}
QUEUE = "kueue.x-k8s.io/queue-name"


def pods(one: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a Job or of a JobSet's Job."""
    spec = one["spec"]
    if one["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    assert spec["backoffLimit"] == 0, "who submits decides on another try"
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_stands_in_the_cluster_is_valid(overlay: str) -> None:
    made = kustomize(INFRA / "overlays" / overlay)
    for one in made:
        validate(one)
    kinds = [one["kind"] for one in made]
    assert kinds[:1] == ["Namespace"]
    assert {"ServiceAccount", "PersistentVolumeClaim"} <= set(kinds)
    assert ("LocalQueue" in kinds) == (overlay == "h100")
    assert "Secret" not in kinds, "keys are made by hand and named"
    assert {one["metadata"].get("namespace", "pivotopd") for one in made} == {"pivotopd"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_jobs_are_valid_and_filled_in(overlay: str) -> None:
    made = kustomize(INFRA / "overlays" / overlay / "jobs")
    for one in made:
        validate(one)
    jobs = {one["metadata"]["name"]: one for one in made if one["kind"] in ("Job", "JobSet")}
    assert set(jobs) == JOBS
    (config,) = [one for one in made if one["kind"] == "ConfigMap"]
    run = {"local": "/data/runs/demo", "h100": "s3://bucket/runs/alfworld"}[overlay]
    for name, one in jobs.items():
        pod = pods(one)
        command = pod["containers"][0]["command"]
        assert not {"RUN", "ITERATION"} & set(command), "a placeholder was left"
        if name == "train":
            assert {"name": "files", "configMap": {"name": config["metadata"]["name"]}} in pod["volumes"]
        else:
            assert command[-4:] == ["--run", run, "--iteration", "0"]
            assert command[-5] == f"stages.{name.removesuffix('-nodes')}"
        assert one["metadata"]["labels"].get(QUEUE) == ("pivotopd" if overlay == "h100" else None)
        assert any(mount["mountPath"] == "/dev/shm" for mount in pod["containers"][0]["volumeMounts"])
    every = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in made}
    assert every == JOBS, "each is applied by its label, the configuration with the training"


def test_h100_asks_for_gpus_and_names_its_secret() -> None:
    for one in kustomize(INFRA / "overlays" / "h100" / "jobs"):
        if one["kind"] == "ConfigMap":
            continue
        pod = pods(one)
        container = pod["containers"][0]
        wanted = "8" if one["kind"] == "JobSet" else "1"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == wanted
        assert container["image"] == "registry.example.org/pivotopd:gpu"
        assert container["envFrom"] == [{"secretRef": {"name": "pivotopd-secrets"}}]
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        assert ("--nproc-per-node=8" in container["command"]) == (one["kind"] == "JobSet")


def test_the_jobs_are_those_of_the_launcher(tmp_path: Path) -> None:
    before = {file.name: file.read_text(encoding="utf-8") for file in (INFRA / "jobs").glob("*.yaml")}
    code = f"import sys; sys.path.insert(0, {str(INFRA)!r}); import render; " + (
        "import json; print(json.dumps({f'{task.name}.yaml': render.page(task) for task in render.tasks()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    written = json.loads(done.stdout)
    assert before.pop("kustomization.yaml")
    assert before == written, "run: python infra/kubernetes/render.py"


@pytest.mark.parametrize(
    ("overlay", "original", "differs"),
    [
        ("local", "demo.yaml", {"name", "root"}),
        ("h100", "alfworld-qwen3-1.7b.yaml", {"name", "root", "student", "environment"}),
    ],
)
def test_the_configurations_are_the_shipped_ones(overlay: str, original: str, differs: set[str]) -> None:
    own = load_config(INFRA / "overlays" / overlay / "jobs" / "config.yaml").model_dump()
    shipped = load_config(ROOT / "configs" / original).model_dump()
    assert {key for key in own if own[key] != shipped[key]} == differs


def test_a_typing_mistake_does_not_pass() -> None:
    (job,) = [one for one in kustomize(INFRA / "jobs") if one["metadata"]["name"] == "rollout"]
    validate(job)
    job["spec"]["backofLimit"] = job["spec"].pop("backoffLimit")
    with pytest.raises(module("kubernetes_validate").ValidationError, match="backofLimit"):
        validate(job)


# ---------------------------------------------------------------------- the template of Prefect's work pool


def template() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((INFRA / "prefect-job-template.json").read_text(encoding="utf-8"))
    return read


def test_every_placeholder_of_the_template_is_a_variable() -> None:
    text = json.dumps(template()["job_configuration"])
    used = set(re.findall(r"\{\{ (\w+) \}\}", text))
    assert used == set(template()["variables"]["properties"])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "gpus": "0",
            "memory": "4G",
            "node_selector": {"zone": "a"},
            "labels": {"team": "a"},
            "queue": "own",
        },
    ],
    ids=["defaults", "own"],
)
def test_what_prefect_makes_of_the_template_is_valid(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PREFECT_API_URL", "http://127.0.0.1:1/api"
    )  # it is not asked; without it, a server starts
    worker = module("prefect_kubernetes.worker")
    from prefect.client.schemas.objects import FlowRun

    made = asyncio.run(
        worker.KubernetesWorkerJobConfiguration.from_template_and_values(
            template(), {**values, "command": "prefect flow-run execute"}
        )
    )
    made.prepare_for_flow_run(FlowRun(flow_id=uuid.uuid4(), name="some run"))
    job = made.job_manifest
    assert job["metadata"]["generateName"] == "some-run-"
    job["metadata"]["name"] = "some-run"  # the validator wants one
    validate(job)
    assert job["metadata"]["labels"][QUEUE] == values.get("queue", "pivotopd")
    pod = pods(job)
    container = pod["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == values.get("gpus", "1")
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables["PREFECT_HOME"] == "/tmp/prefect", "not the worker's"
    assert variables["PREFECT_SERVER_EPHEMERAL_ENABLED"] == "false"


def test_prefects_own_template_is_not_valid() -> None:
    """Why there is one here; once this fails, theirs may do."""
    worker = module("prefect_kubernetes.worker")
    manifest = worker.KubernetesWorker.get_default_base_job_template()["job_configuration"]["job_manifest"]
    assert "completions" in manifest["spec"]["template"]["spec"]
