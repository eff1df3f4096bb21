"""Manifests are valid and say what was asked for; the client submits, finds, awaits, cancels, on a fake."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.artifacts import RunLayout
from pivotopd.errors import ClusterError, ConfigError
from pivotopd.launch.base import LOG, SCRIPT, Needed, State, Task
from pivotopd.launch.kubernetes import KubernetesLauncher
from pivotopd.launch.kubernetes_manifests import Placement, as_yaml, literal, manifests, slug
from pivotopd.launch.kubernetes_section import KubernetesSection
from pivotopd.launch.records import Records
from tests.kubernetes_tools import FakeApi, kubeconfig, objects, program, serve, status, validate

SETTINGS = KubernetesSection(secrets=("keys",), variables={"AWS_REGION": "eu-west-1"})
ONE = Task(
    "recover-0003",
    "digest",
    ("-m", "stages.recover", "--run=s3://bucket/run", "--iteration=3"),
    Needed(
        image="registry/pivotopd:cpu", gpus=1, partition="team", gpu_type="H100", constraint="zone=a,pool=b"
    ),
)
SEVERAL = replace(
    ONE,
    name="update-0003",
    arguments=("-m", "stages.update", "--run=s3://bucket/run", "--iteration=3"),
    resources=replace(ONE.resources, nodes=2, ranks=8, gpus=8),
)
TOKEN = "recover-0003-0123456789ab"
JOBS = "/apis/batch/v1/namespaces/pivotopd/jobs"
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/pivotopd/jobsets"
PODS = "/api/v1/namespaces/pivotopd/pods"


def only(task: Task, settings: KubernetesSection = SETTINGS) -> dict[str, Any]:
    (made,) = manifests(Placement(task, settings, TOKEN))
    return made


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a text: $$ is a dollar, $(NAME) a variable's value where there is one."""
    return re.sub(
        r"\$(\$|\(([^)]*)\))",
        lambda found: "$" if found[1] == "$" else variables.get(found[2], found[0]),
        text,
    )


# ---------------------------------------------------------------------- manifests


@pytest.mark.parametrize(
    "task",
    [
        ONE,
        SEVERAL,
        replace(ONE, resources=Needed(image="pivotopd")),
        replace(ONE, resources=replace(ONE.resources, account="team-7")),
        replace(ONE, arguments=("-m", "flows.cli", "train", "/r/c.yaml"), files={"/r/c.yaml": "seed: 1\n"}),
    ],
    ids=["gpu", "nodes", "plain", "account", "file"],
)
@pytest.mark.parametrize("settings", [SETTINGS, KubernetesSection(claim=None)], ids=["claim", "bucket"])
def test_manifests_are_valid(task: Task, settings: KubernetesSection) -> None:
    text = as_yaml(manifests(Placement(task, settings, TOKEN)))
    for one in objects(text):
        validate(one)


def test_a_job_never_tries_again_and_stops_ahead_of_its_limit() -> None:
    spec = only(replace(ONE, resources=replace(ONE.resources, time_limit_min=30)))["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["activeDeadlineSeconds"] == 1800
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["containers"][0]["command"] == [
        "timeout", "--preserve-status", "--signal=TERM", "1680", "python", "-m", "stages.recover",
        "--run=s3://bucket/run", "--iteration=3",
    ]  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] == 120


def test_resources_and_places_are_those_asked_for() -> None:
    resources = replace(ONE.resources, cpus=4, ranks=2, gpus=2, memory_gb=1.5)
    made = only(replace(ONE, resources=resources))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    pod = made["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"zone": "a", "pool": "b", "nvidia.com/gpu.product": "H100"}
    container = pod["containers"][0]
    limits = {"memory": "1500M", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": {"cpu": "8", **limits}, "limits": limits}
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "AWS_REGION", "value": "eu-west-1"} in container["env"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8000M"}} in pod["volumes"]
    assert "torch.distributed.run" in container["command"]
    assert "--standalone" in container["command"]


def test_without_gpus_and_queue_neither_is_named() -> None:
    made = only(replace(ONE, resources=Needed(image="pivotopd")))
    text = json.dumps(made)
    assert "kueue" not in text
    assert "nvidia" not in text
    assert "nodeSelector" not in text


def test_several_nodes_are_one_set_whose_ranks_find_the_first() -> None:
    made = only(SEVERAL)
    name = made["metadata"]["name"]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    job = made["spec"]["replicatedJobs"][0]["template"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"], "the set is queued, not its Job"
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["backoffLimit"] == 0
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    start = command.index("torch.distributed.run")
    assert command[start + 1 : start + 7] == [
        "--max-restarts=0", "--nproc-per-node=8", "--nnodes=2", "--node-rank=$(NODE_RANK)",
        f"--master-addr={name}-ranks-0-0.{name}", "--master-port=29500",
    ]  # fmt: skip


def test_a_file_goes_along_and_its_argument_names_it_in_the_pod() -> None:
    path = "/home/me/runs/demo/jobs/train-12/config.yaml"
    task = replace(
        ONE, name="train", arguments=("-m", "flows.cli", "train", path), files={path: "seed: '$(X)'\n"}
    )
    config, job = manifests(Placement(task, SETTINGS, TOKEN))
    assert config["data"] == {"config.yaml": "seed: '$(X)'\n"}
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][-1] == "/etc/pivotopd/config.yaml"
    assert {"name": "files", "configMap": {"name": config["metadata"]["name"]}} in pod["volumes"]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_a_value_arrives_as_it_was_written(value: str) -> None:
    assert expanded(literal(value), {"X": "other", "": "none"}) == value


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60),
    st.sampled_from(["$(NODE_RANK)", "': {a", "- x"]),
)
def test_no_value_changes_the_manifest_around_it(value: str, trap: str) -> None:
    task = replace(ONE, arguments=("-m", "stages.recover", f"--run={value}{trap}"))
    (read,) = objects(as_yaml(manifests(Placement(task, SETTINGS, TOKEN))))
    assert read == only(task)
    command = read["spec"]["template"]["spec"]["containers"][0]["command"]
    assert expanded(command[-1], {"NODE_RANK": "7"}) == f"--run={value}{trap}"


@settings(deadline=None)
@given(st.text(max_size=80))
def test_names_are_such_as_kubernetes_takes(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", slug(text, 40))


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (replace(ONE.resources, image=None), "needs a container image"),
        (replace(ONE.resources, constraint="h100"), "selects no nodes"),
        (replace(ONE.resources, partition="a:b"), "cannot be a label's value"),
        (replace(ONE.resources, time_limit_min=2), "would stop before it starts"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(resources: Needed, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        only(replace(ONE, resources=resources))


def test_kubernetes_is_not_asked_to_chain_jobs() -> None:
    launcher = KubernetesLauncher(SETTINGS)
    assert not launcher.chains
    with pytest.raises(ConfigError, match="starts no job after another"):
        launcher.render(replace(ONE, after=("job/a",)), "", TOKEN)


# ---------------------------------------------------------------------- the client, on a fake server


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi()
    with serve(fake):
        config = tmp_path / "kubeconfig"
        config.write_text(kubeconfig(fake.port), encoding="utf-8")
        monkeypatch.setenv("KUBECONFIG", str(config))
        yield fake


@pytest.fixture
def launcher(api: FakeApi) -> KubernetesLauncher:
    return KubernetesLauncher(SETTINGS.model_copy(update={"kubectl": program("kubectl")}))


def pod(name: str, job: str, phase: str, code: int | None = None) -> dict[str, Any]:
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    return {
        "metadata": {"name": name, "labels": {"batch.kubernetes.io/job-name": job}},
        "status": {"phase": phase, "containerStatuses": [{"name": "stage", "state": state}]},
    }


def test_submitting_twice_starts_one_job_and_another_process_finds_it(
    api: FakeApi, launcher: KubernetesLauncher
) -> None:
    assert launcher.find("", TOKEN) is None
    task = replace(ONE, arguments=("-m", "flows.cli", "train", "c.yaml"), files={"c.yaml": "seed: 1\n"})
    job = launcher.submit(task, "", TOKEN)
    assert launcher.submit(task, "", TOKEN) == job
    name = job.removeprefix("job/")
    assert set(api.objects) == {f"{JOBS}/{name}", f"/api/v1/namespaces/pivotopd/configmaps/{name}"}
    assert launcher.find("", TOKEN) == job
    assert launcher.find("", "another") is None
    assert "planted" not in json.dumps(api.objects), "the client's key stays with the client"
    launcher.cancel(job)
    launcher.cancel(job)
    assert api.objects == {}
    assert launcher.state("", job).phase == "lost"
    deleted = [path for verb, path in api.asked if verb == "DELETE" and path.startswith(f"{JOBS}/{name}?")]
    assert all("propagationPolicy=Background" in path for path in deleted), "its pods go as well"
    assert len(deleted) == 2


def test_what_is_kept_of_a_submission_is_what_was_created(
    api: FakeApi, launcher: KubernetesLauncher, tmp_path: Path
) -> None:
    opened = Records(RunLayout(str(tmp_path), "r")).open(ONE, launcher)
    assert opened is not None
    _, record = opened
    job = launcher.submit(ONE, record.folder, record.token)
    (kept,) = objects((Path(record.folder) / SCRIPT).read_text(encoding="utf-8"))
    assert kept["metadata"]["name"] == job.removeprefix("job/")
    assert kept["metadata"] == api.objects[f"{JOBS}/{kept['metadata']['name']}"]["metadata"]


def test_a_job_is_watched_from_the_queue_to_its_end(
    api: FakeApi, launcher: KubernetesLauncher, tmp_path: Path
) -> None:
    job = launcher.submit(ONE, "", TOKEN)
    name = job.removeprefix("job/")
    one = api.objects[f"{JOBS}/{name}"]
    one["spec"]["suspend"] = True
    assert launcher.state("", job) == State("waiting", reason="suspended: its queue has not admitted it")
    one["spec"]["suspend"] = False
    pending = pod("a", name, "Pending")
    pending["status"]["containerStatuses"][0]["state"] = {
        "waiting": {"reason": "ImagePullBackOff", "message": "no such image"}
    }
    api.objects[f"{PODS}/a"] = pending
    assert launcher.state("", job) == State("waiting", reason="ImagePullBackOff: no such image")
    api.objects[f"{PODS}/a"] = pod("a", name, "Running")
    api.logs["a"] = "recover: half\n"
    assert launcher.state(str(tmp_path), job).phase == "running"
    assert (tmp_path / LOG).read_text(encoding="utf-8") == "recover: half\n"
    one["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert launcher.state("", job) == State("done", 0)


@pytest.mark.parametrize(
    ("message", "pods", "code"),
    [
        ("Container stage for pod p/a failed with exit code 5 matching FailJob rule at index 1", [], 5),
        ("Pod p/a has condition DisruptionTarget matching FailJob rule at index 0", [], 75),
        ("Job has reached the specified backoff limit", [143, 3], 3),
        ("Job was active longer than specified deadline", [], None),
    ],
)
def test_how_a_job_failed_is_told(
    api: FakeApi, launcher: KubernetesLauncher, message: str, pods: list[int], code: int | None
) -> None:
    job = launcher.submit(ONE, "", TOKEN)
    name = job.removeprefix("job/")
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": message}
    api.objects[f"{JOBS}/{name}"]["status"] = {"conditions": [failed]}
    for number, ended in enumerate(pods):
        api.objects[f"{PODS}/{number}"] = pod(str(number), name, "Failed", ended)
    assert launcher.state("", job) == State("failed", code, message)


def test_a_set_tells_how_the_job_of_its_ranks_failed(api: FakeApi, launcher: KubernetesLauncher) -> None:
    job = launcher.submit(SEVERAL, "", TOKEN)
    assert job.startswith("jobset/")
    name = job.removeprefix("jobset/")
    assert launcher.find("", TOKEN) == job
    api.objects[f"{SETS}/{name}"]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    message = "Container stage for pod p/a failed with exit code 7 matching FailJob rule at index 1"
    failed = {"type": "Failed", "status": "True", "message": message}
    api.objects[f"{JOBS}/{name}-ranks-0"] = {
        "metadata": {"name": f"{name}-ranks-0"},
        "status": {"conditions": [failed]},
    }
    assert launcher.state("", job) == State("failed", 7, message)


def test_a_cluster_without_sets_is_asked_for_jobs_all_the_same(
    api: FakeApi, launcher: KubernetesLauncher
) -> None:
    api.kinds.remove("jobsets")
    job = launcher.submit(ONE, "", TOKEN)
    assert launcher.find("", TOKEN) == job
    with pytest.raises(ConfigError, match="could not find the requested resource"):
        launcher.submit(SEVERAL, "", TOKEN)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (401, "Unauthorized", ConfigError),
        (403, "Forbidden", ConfigError),
        (422, "Invalid", ConfigError),
        (500, "InternalError", ClusterError),
        (503, "ServiceUnavailable", ClusterError),
    ],
)
def test_a_refusal_is_not_an_outage(
    api: FakeApi, launcher: KubernetesLauncher, code: int, reason: str, error: type[Exception]
) -> None:
    api.failures = [(code, reason)]
    with pytest.raises(error, match="made to fail"):
        launcher.submit(ONE, "", TOKEN)


def test_a_field_that_the_server_does_not_know_is_refused() -> None:
    made = only(ONE)
    made["spec"]["backofLimit"] = made["spec"].pop("backoffLimit")
    fake = FakeApi()
    code, told = fake.answer("POST", f"{JOBS}?fieldValidation=Strict", json.dumps(made).encode())
    assert (code, told["reason"]) == (400, "BadRequest")
    assert fake.objects == {}
    assert status(400, "BadRequest", told["message"]) == told


def test_a_closed_port_and_a_missing_program_say_what_to_do(
    launcher: KubernetesLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "closed"
    config.write_text(kubeconfig(1), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(config))
    with pytest.raises(ClusterError, match="cannot be reached"):
        launcher.state("", "job/a")
    absent = KubernetesLauncher(KubernetesSection(kubectl="no-such-kubectl"))
    with pytest.raises(ConfigError, match="is not here"):
        absent.submit(ONE, "", TOKEN)


@pytest.mark.parametrize("job", ["42", "pod/a"])
def test_another_platforms_job_is_refused(job: str) -> None:
    with pytest.raises(ConfigError, match="is no job of Kubernetes"):
        KubernetesLauncher(SETTINGS).cancel(job)
