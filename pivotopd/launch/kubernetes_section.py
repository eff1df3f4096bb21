"""Settings of the Kubernetes launcher."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from pivotopd.launch.base import Line
from pivotopd.section import Count, Positive, Section

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def is_label_value(text: str) -> bool:
    """Tell whether Kubernetes takes a text as a label's value."""
    return text == "" or _LABEL_NAME.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Tell whether Kubernetes takes a text as a label's key, with or without a domain before a slash."""
    domain, slash, name = text.rpartition("/")
    return _LABEL_NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("small letters, digits and dashes, at most 63, as in Kubernetes' names")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("give the name of an environment variable in capitals")
    return value


def _folder(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or ":" in value or ".." in value.split("/"):
        raise ValueError("give an absolute path without colon and without ..")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""Name of an object in the cluster."""
VariableName = Annotated[str, AfterValidator(_variable)]


class KubernetesSection(Section):
    """How jobs are handed to Kubernetes. Nothing of it enters a digest.

    Of the resources, `partition` names the Kueue queue, `account` becomes a label, `constraint` is a node
    selector written `key=value,key=value`, and `image` must be given.
    """

    namespace: Name = "pivotopd"
    """Namespace of everything."""
    context: Line | None = None
    """Context of kubectl; null takes the current one."""
    kubectl: Line = "kubectl"
    """Program that talks to the cluster."""
    python: Line = "python"
    """Python in the image."""
    service_account: Name = "pivotopd"
    """Service account of the pods; its token is not mounted."""
    secrets: tuple[Name, ...] = ()
    """Names of Secrets whose keys become environment variables; their values are seen nowhere else."""
    variables: dict[VariableName, str] = Field(default_factory=dict)
    """Environment variables that are no secrets."""
    claim: Name | None = "pivotopd-runs"
    """PersistentVolumeClaim with runs, models and games; null mounts none, as where all lies in a bucket."""
    mount: Annotated[str, AfterValidator(_folder)] = "/data"
    """Where the claim is mounted."""
    shared_memory_gb: Positive = 8.0
    """Size of /dev/shm, through which ranks and engines talk; it counts as memory of the pod."""
    gpu_label: Annotated[str, Field(min_length=1)] = "nvidia.com/gpu.product"
    """Label of nodes that `gpu_type` is compared with."""
    stop_ahead_s: Annotated[int, Field(ge=1, le=65_535)] = 120
    """Seconds before the time limit at which a job stops at a safe point."""
    keep_s: Count = 86_400
    """Seconds for which a finished job stays to be looked at."""
    folder: Line | None = None
    """Folder of this machine for logs; null takes the run's, or for a bucket one in the user's cache."""
    poll_s: Positive = 5.0
    """Seconds between questions to the cluster."""
    patience_s: Positive = 1800.0
    """How long the cluster may be out of reach before the waiting command gives up; jobs stay."""
    vanished_s: Positive = 10.0
    """How long a job may be unknown to the cluster before it counts as lost."""
    user: Count = 10_001
    """User and group of the processes, as in our image; never root."""
