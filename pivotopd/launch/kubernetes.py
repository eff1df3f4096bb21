"""The Kubernetes launcher: a Job for each task, a JobSet where a task needs several nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pivotopd.errors import ConfigError
from pivotopd.launch.base import LOG, State, Task
from pivotopd.launch.kubectl import AlreadyThere, Kubectl, NotThere
from pivotopd.launch.kubernetes_manifests import (
    CONTAINER,
    JOBSET_VERSION,
    RANKS,
    TOKEN_LABEL,
    Manifest,
    Placement,
    as_yaml,
    manifests,
    token_label,
)
from pivotopd.launch.kubernetes_section import KubernetesSection

STOPPED: Final = 75
"""Exit code of a process that was asked to stop: also that of one whose node was taken away."""
_API: Final = {"configmap": "/api/v1", "job": "/apis/batch/v1", "jobset": f"/apis/{JOBSET_VERSION}"}
_EXIT_CODE: Final = re.compile(r"failed with exit code (\d+) matching")
_DISRUPTED: Final = "has condition DisruptionTarget matching"


@dataclass(frozen=True, slots=True)
class KubernetesLauncher:
    """Hands tasks to a cluster and asks how they are.

    Attributes:
        settings: How jobs are handed over.
    """

    settings: KubernetesSection

    @property
    def chains(self) -> bool:
        """Kubernetes starts no job after others."""
        return False

    @property
    def kind(self) -> str:
        """Name of the platform, as in ``--to``."""
        return "kubernetes"

    def render(self, task: Task, folder: str, token: str) -> str:
        """Return the manifests of a task as YAML.

        Args:
            task: The job.
            folder: Not needed here: the cluster keeps log and exit code.
            token: What the object's name ends in.
        """
        del folder
        return as_yaml(self._objects(task, token))

    def submit(self, task: Task, folder: str, token: str) -> str:
        """Create the objects of a task and return the job's id, such as ``job/recover-0003-1a2b3c4d``.

        Objects that exist under the token are taken as they are: submitting twice starts nothing twice.

        Raises:
            ConfigError: The cluster refuses the job, or kubectl is missing.
            ClusterError: It cannot be reached.
        """
        del folder
        job = ""
        for manifest in self._objects(task, token):
            kind = manifest["kind"].lower()
            with suppress(AlreadyThere):
                self._client.create(self._path(kind), manifest)
            job = f"{kind}/{manifest['metadata']['name']}"
        return job

    def find(self, folder: str, token: str) -> str | None:
        """Return the id of the job that was submitted with a token, or None if there is none.

        Raises:
            ClusterError: The cluster cannot be reached.
        """
        del folder
        selector = f"?labelSelector={TOKEN_LABEL}%3D{token_label(token)}"
        for kind in ("jobset", "job"):  # a set's Job bears the same label
            with suppress(NotThere):  # a cluster without JobSet knows no such kind
                for item in self._client.get(self._path(kind) + selector)["items"]:
                    return f"{kind}/{item['metadata']['name']}"
        return None

    def state(self, folder: str, job: str) -> State:
        """Say how a job is, and bring its log into its folder as far as it is written.

        Raises:
            ClusterError: The cluster cannot be reached now; ask again.
        """
        try:
            found = self._client.get(self._path(*_parts(job)))
        except NotThere:
            return State("lost", reason="the cluster has no such object")
        state = self._state(job, found)
        if folder and state.phase not in ("waiting", "lost"):
            self._keep_log(job, Path(folder) / LOG)
        return state

    def _state(self, job: str, found: Mapping[str, Any]) -> State:
        status = found.get("status") or {}
        for condition in status.get("conditions") or []:
            if condition.get("status") != "True":
                continue
            if condition["type"] in ("Complete", "Completed"):
                return State("done", 0)
            if condition["type"] == "Failed":
                return self._failed(job, condition)
        return self._unfinished(job, found)

    def cancel(self, job: str) -> None:
        """Delete a job and its pods, which are asked to stop first; one that is gone is no error."""
        kind, name = _parts(job)
        with suppress(NotThere):
            self._client.delete(self._path(kind, name))
        with suppress(NotThere):
            self._client.delete(self._path("configmap", name))

    @property
    def _client(self) -> Kubectl:
        return Kubectl(self.settings.kubectl, self.settings.context)

    def _objects(self, task: Task, token: str) -> list[Manifest]:
        if task.after:
            raise ConfigError(
                "Kubernetes starts no job after another",
                where=task.name,
                mend="let the training wait for each stage before it hands over the next",
            )
        return manifests(Placement(task, self.settings, token))

    def _path(self, kind: str, name: str = "") -> str:
        path = f"{_API[kind]}/namespaces/{self.settings.namespace}/{kind}s"
        return f"{path}/{name}" if name else path

    def _pods(self, job: str) -> list[Any]:
        kind, name = _parts(job)
        label = "batch.kubernetes.io/job-name" if kind == "job" else "jobset.sigs.k8s.io/jobset-name"
        found = self._client.get(
            f"/api/v1/namespaces/{self.settings.namespace}/pods?labelSelector={label}%3D{name}"
        )
        items: list[Any] = found["items"]
        return items

    def _keep_log(self, job: str, log: Path) -> None:
        """Write what the first pod has said so far; pods that are gone leave what is there."""
        for pod in sorted(self._pods(job), key=lambda one: str(one["metadata"]["name"]))[:1]:
            path = f"/api/v1/namespaces/{self.settings.namespace}/pods/{pod['metadata']['name']}/log"
            with suppress(ConfigError):  # the container has not started, or the node has gone with its log
                text = self._client.read(f"{path}?container={CONTAINER}")
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(text, encoding="utf-8")

    def _failed(self, job: str, condition: Mapping[str, Any]) -> State:
        """Say how a job failed: by its own status, else by what its pods still tell."""
        message = condition.get("message") or condition.get("reason") or ""
        if _DISRUPTED in message:
            return State("failed", STOPPED, message)
        if said := _EXIT_CODE.search(message):
            return State("failed", int(said[1]), message)
        kind, name = _parts(job)
        if kind == "jobset":  # the reason stands with the Job of its ranks
            own = self.state("", f"job/{name}-{RANKS}-0")
            if own.exit_code:
                return State("failed", own.exit_code, own.reason)
        codes = list(_exit_codes(self._pods(job)))
        return State("failed", min(codes, default=None), message)  # who is ended by others has 128 + signal

    def _unfinished(self, job: str, found: Mapping[str, Any]) -> State:
        if (found.get("spec") or {}).get("suspend"):
            return State("waiting", reason="suspended: its queue has not admitted it")
        pods = self._pods(job)
        if any(pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed") for pod in pods):
            return State("running")
        return State("waiting", reason=next(_reasons(pods), ""))


def _parts(job: str) -> tuple[str, str]:
    kind, slash, name = job.partition("/")
    if not slash or kind not in ("job", "jobset"):
        raise ConfigError(f"{job!r} is no job of Kubernetes", mend="give job/NAME or jobset/NAME")
    return kind, name


def _exit_codes(pods: list[Any]) -> Iterator[int]:
    """Yield the exit codes other than 0 of our containers."""
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses") or []:
            ended = (status.get("state") or {}).get("terminated")
            if status.get("name") == CONTAINER and ended and ended.get("exitCode"):
                yield int(ended["exitCode"])


def _reasons(pods: list[Any]) -> Iterator[str]:
    """Yield why pods do not run yet, such as an image that cannot be pulled or a node that is wanted."""
    for pod in pods:
        status = pod.get("status", {})
        for container in status.get("containerStatuses") or []:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                yield f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        for condition in status.get("conditions") or []:
            if condition.get("status") == "False" and condition.get("message"):
                yield f"{condition.get('reason', '')}: {condition['message']}".lstrip(": ")
