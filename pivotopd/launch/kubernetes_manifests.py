"""Kubernetes manifests of jobs, from typed values: a Job, a JobSet for several nodes, a ConfigMap for files.

Manifests are plain values until they are printed: nothing that a user writes is ever pasted into YAML. Jobs
do not retry: who asked for one decides. Kubernetes replaces ``$(NAME)`` in commands and variables, so every
``$`` of a user's value is doubled, which it takes for one.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

import yaml

from pivotopd.errors import ConfigError
from pivotopd.launch.base import Needed, Task
from pivotopd.launch.kubernetes_section import KubernetesSection, is_label_key, is_label_value

CONTAINER: Final = "stage"
FILES: Final = "/etc/pivotopd"
"""Where the files of a job are mounted."""
MASTER_PORT: Final = 29_500
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
TOKEN_LABEL: Final = "pivotopd/token"  # noqa: S105 - a label's key, not a secret
RANKS: Final = "ranks"
"""Name of the one replicated job of a JobSet."""
JOBSET_VERSION: Final = "jobset.x-k8s.io/v1alpha2"

Manifest = dict[str, Any]
"""One object as plain values, ready to be written as YAML or JSON."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A task on its way to a cluster.

    Attributes:
        task: The job.
        settings: How it is handed over.
        token: A name that no other submission has; the object's name ends in its hash.
    """

    task: Task
    settings: KubernetesSection
    token: str

    @property
    def files(self) -> dict[str, str]:
        """Texts of the task's files, by their names below :data:`FILES`."""
        return {PurePath(path).name: text for path, text in self.task.files.items()}

    @property
    def name(self) -> str:
        """Name of the job and of what belongs to it, short enough for the host names of its pods."""
        return f"{slug(self.task.name, 40)}-{token_label(self.token)[:8]}"

    @property
    def kind(self) -> str:
        """Kind of the object that runs the task."""
        return "JobSet" if self.task.resources.nodes > 1 else "Job"


def slug(text: str, length: int = 63) -> str:
    """Return a name that Kubernetes takes, made of a text: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:length].strip("-") or "job"


def token_label(token: str) -> str:
    """Return the value of the label by which a submission is found again."""
    return hashlib.sha256(token.encode()).hexdigest()[:40]


def literal(text: str) -> str:
    """Return a text that Kubernetes hands on as it was, where it would replace ``$(NAME)``."""
    return text.replace("$", "$$")


def manifests(placement: Placement) -> list[Manifest]:
    """Return the objects of a task, the job last.

    Raises:
        ConfigError: No image is given, a selector or label is not acceptable, or the time limit is too short.
    """
    head = [_config_map(placement)] if placement.files else []
    return [*head, _job_set(placement) if placement.kind == "JobSet" else _job(placement)]


def as_yaml(objects: list[Manifest]) -> str:
    """Return manifests as one YAML text."""
    return yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True, width=110)


def _config_map(placement: Placement) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(placement),
        "immutable": True,
        "data": placement.files,
    }


def _job(placement: Placement) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(placement, queued=True),
        "spec": {"ttlSecondsAfterFinished": placement.settings.keep_s, **_job_spec(placement)},
    }


def _job_set(placement: Placement) -> Manifest:
    """Return a set of one indexed Job, whose pods reach each other by name; one that fails ends all."""
    nodes = placement.task.resources.nodes
    spec = {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", **_job_spec(placement)}
    return {
        "apiVersion": JOBSET_VERSION,
        "kind": "JobSet",
        "metadata": _metadata(placement, queued=True),
        "spec": {
            "ttlSecondsAfterFinished": placement.settings.keep_s,
            "failurePolicy": {"maxRestarts": 0},
            "successPolicy": {"operator": "All"},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [
                {
                    "name": RANKS,
                    "replicas": 1,
                    "template": {"metadata": {"labels": _labels(placement)}, "spec": spec},
                }
            ],
        },
    }


def _metadata(placement: Placement, *, queued: bool = False) -> Manifest:
    labels = _labels(placement)
    queue = placement.task.resources.partition
    if queued and queue is not None:
        labels[QUEUE_LABEL] = _label_value(queue, "partition")
    return {"name": placement.name, "namespace": placement.settings.namespace, "labels": labels}


def _labels(placement: Placement) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "pivotopd",
        "app.kubernetes.io/component": slug(placement.task.name),
        TOKEN_LABEL: token_label(placement.token),
    }
    account = placement.task.resources.account
    if account is not None:
        labels["pivotopd/account"] = _label_value(account, "account")
    return labels


def _job_spec(placement: Placement) -> Manifest:
    """Return a Job's spec: one try, and a rule that keeps how it failed in the Job's own status."""
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": 60 * placement.task.resources.time_limit_min,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0]},
                },
            ]
        },
        "template": {"metadata": {"labels": _labels(placement)}, "spec": _pod(placement)},
    }


def _pod(placement: Placement) -> Manifest:
    settings, resources = placement.settings, placement.task.resources
    pod: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": settings.stop_ahead_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    selector = _node_selector(settings, resources)
    if selector:
        pod["nodeSelector"] = selector
    if resources.gpus:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    pod["containers"] = [_container(placement)]
    pod["volumes"] = _volumes(placement)
    return pod


def _container(placement: Placement) -> Manifest:
    settings, resources = placement.settings, placement.task.resources
    if resources.image is None:
        raise ConfigError(
            "a pod needs a container image, and none is given",
            where="launch.resources.image",
            mend="build one from the Dockerfile, push it, and give its address",
        )
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if settings.claim is not None:
        mounts.append({"name": "data", "mountPath": settings.mount})
    if placement.files:
        mounts.append({"name": "files", "mountPath": FILES, "readOnly": True})  # type: ignore[dict-item]
    container: Manifest = {
        "name": CONTAINER,
        "image": resources.image,
        "command": _command(placement),
        "workingDir": settings.mount if settings.claim is not None else "/tmp",  # noqa: S108 - the pod's own
        "env": _variables(placement),
    }
    if settings.secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in settings.secrets]
    return container | {
        "resources": _requests(resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _command(placement: Placement) -> list[str]:
    """Return the command: the image's Python, started on every rank, stopped ahead of the time limit."""
    task, settings = placement.task, placement.settings
    running_s = 60 * task.resources.time_limit_min - settings.stop_ahead_s
    if running_s <= 0:
        raise ConfigError(
            f"a job of {task.resources.time_limit_min} min would stop before it starts",
            where="launch.resources.time_limit_min",
            mend=f"give more than launch.kubernetes.stop_ahead_s, which is {settings.stop_ahead_s} s",
        )
    start = ["timeout", "--preserve-status", "--signal=TERM", str(running_s), literal(settings.python)]
    own = [
        f"{FILES}/{PurePath(argument).name}" if argument in task.files else argument
        for argument in task.arguments
    ]
    ranks = _ranks(placement)
    if ranks and own[0] == "-m":  # torchrun takes a stage's `--run` for one of its own options otherwise
        own.insert(1, "--")
    return start + ranks + [literal(argument) for argument in own]


def _ranks(placement: Placement) -> list[str]:
    """Return what starts several ranks: nothing for one."""
    resources = placement.task.resources
    if resources.processes == 1:
        return []
    start = ["-m", "torch.distributed.run", "--max-restarts=0", f"--nproc-per-node={resources.ranks}"]
    if resources.nodes == 1:
        return [*start, "--standalone"]
    first = f"{placement.name}-{RANKS}-0-0.{placement.name}"
    return [
        *start,
        f"--nnodes={resources.nodes}",
        "--node-rank=$(NODE_RANK)",
        f"--master-addr={first}",
        f"--master-port={MASTER_PORT}",
    ]


def _variables(placement: Placement) -> list[Manifest]:
    """Return environment variables: writable folders, the job's name, the user's own, a node's rank."""
    given = {
        "HOME": "/tmp",  # noqa: S108 - a volume of the pod's own
        "PREFECT_HOME": "/tmp/prefect",  # noqa: S108
        "OMP_NUM_THREADS": str(placement.task.resources.cpus),
        "PIVOTOPD_KUBERNETES_JOB": f"{placement.settings.namespace}/{placement.name}",
        **placement.settings.variables,
    }
    variables: list[Manifest] = [{"name": key, "value": literal(value)} for key, value in given.items()]
    if placement.task.resources.nodes > 1:
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        variables.append({"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    return variables


def _requests(resources: Needed) -> Manifest:
    """Return requests and limits: no limit on CPU, which only slows a job down."""
    limits = {"memory": _bytes(resources.memory_gb)}
    if resources.gpus:
        limits["nvidia.com/gpu"] = str(resources.gpus)
    return {"requests": {"cpu": str(resources.cpus * resources.ranks), **limits}, "limits": limits.copy()}


def _volumes(placement: Placement) -> list[Manifest]:
    settings = placement.settings
    volumes: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _bytes(settings.shared_memory_gb)}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if settings.claim is not None:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": settings.claim}})
    if placement.files:
        volumes.append({"name": "files", "configMap": {"name": placement.name}})
    return volumes


def _bytes(gb: float) -> str:
    """Return gigabytes as Kubernetes writes them, in whole megabytes."""
    return f"{math.ceil(gb * 1000)}M"


def _node_selector(settings: KubernetesSection, resources: Needed) -> dict[str, str]:
    pairs = [] if resources.constraint is None else resources.constraint.split(",")
    selector = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not is_label_key(key) or not is_label_value(value):
            raise ConfigError(
                f"{pair!r} selects no nodes", where="constraint", mend="write key=value,key=value"
            )
        selector[key] = value
    if resources.gpu_type is not None:
        selector[settings.gpu_label] = _label_value(resources.gpu_type, "gpu_type")
    return selector


def _label_value(value: str, where: str) -> str:
    if not is_label_value(value):
        raise ConfigError(
            f"{value!r} cannot be a label's value in Kubernetes",
            where=where,
            mend="use letters, digits, dots, dashes and underscores, at most 63",
        )
    return value
