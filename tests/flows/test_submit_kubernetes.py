"""``pivotopd submit --to kubernetes``: what is shown, and a training whose jobs a fake cluster runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.config_files import dump_config
from tests.flows.runs import environment_of, finish, source
from tests.kubernetes_tools import FakeApi, kubeconfig, objects, program, serve, validate
from tests.small_student import small_config

KEY = "planted-7f3a"
STAGES = ["checkpoint", "evaluate", "evaluate", "label", "recover", "rollout", "update"]


@dataclass
class FakeCluster(FakeApi):
    """The fake server, and a fake of a node: the command of a Job's pod runs here, in a process.

    It knows no image, volume or queue; what it shows is that the command of a manifest does the stage's work.

    Attributes:
        home: Folder of the processes.
        hold: Jobs wait until this is set.
    """

    home: Path = Path()
    hold: threading.Event = field(default_factory=threading.Event)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def answer(self, verb: str, path: str, body: bytes) -> tuple[int, Any]:
        before = set(self.objects)
        code, answer = super().answer(verb, path, body)
        for own in set(self.objects) - before:
            if self.objects[own]["kind"] == "Job":
                threading.Thread(target=self._run, args=(own,), daemon=True).start()
        for own in before - set(self.objects):
            if process := self.processes.get(own):
                os.killpg(process.pid, signal.SIGTERM)
        return code, answer

    def _run(self, own: str) -> None:
        self.hold.wait()
        job = self.objects[own]
        name = job["metadata"]["name"]
        container = job["spec"]["template"]["spec"]["containers"][0]
        command = [self._here(word, name) for word in container["command"]]
        pod = own.replace("/apis/batch/v1", "/api/v1").replace("/jobs/", "/pods/") + "-a"
        log = self.home / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=source(),
                env=environment_of(self.home) | {"TEACHER_KEY": KEY},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[own] = process
        labels = {"batch.kubernetes.io/job-name": name}
        self.objects[pod] = {
            "kind": "Pod",
            "metadata": {"name": f"{name}-a", "labels": labels},
            "status": {"phase": "Running"},
        }
        code = process.wait()
        self.logs[f"{name}-a"] = log.read_text(encoding="utf-8")
        message = f"Container stage for pod p/{name}-a failed with exit code {code} matching FailJob rule"
        ended = {"type": "Failed", "message": message} if code else {"type": "Complete"}
        job["status"] = {"conditions": [{**ended, "status": "True"}]}

    def _here(self, word: str, name: str) -> str:
        """What the image and the volumes would give."""
        if word == "python":
            return sys.executable
        if word.startswith("/etc/pivotopd/"):
            file = word.removeprefix("/etc/pivotopd/")
            target = self.home / f"{name}-{file}"
            target.write_text(self.objects[f"/api/v1/namespaces/pivotopd/configmaps/{name}"]["data"][file])
            return str(target)
        return word.replace("$$", "$")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    home = tmp_path / "cluster"
    home.mkdir()
    fake = FakeCluster(home=home)
    fake.hold.set()
    with serve(fake):
        (home / "kubeconfig").write_text(kubeconfig(fake.port, KEY), encoding="utf-8")
        yield fake
    for process in fake.processes.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def config_of(root: Path, student: Path, **resources: object) -> RunConfig:
    launch = {
        "resources": {"image": "registry/pivotopd:cpu", "memory_gb": 2, **resources},
        "kubernetes": {"poll_s": 0.5, "vanished_s": 2, "kubectl": program("kubectl"), "secrets": ["keys"]},
    }
    return small_config(root, student, name="a $(NAME) 'run'", iterations=1, launch=launch)


def submit(config: RunConfig, cluster: FakeCluster, *arguments: str) -> subprocess.Popen[str]:
    home = cluster.home / "client"
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(dump_config(config))
    environment = environment_of(home) | {
        "KUBECONFIG": str(cluster.home / "kubeconfig"),
        "TEACHER_KEY": KEY,
    }
    return subprocess.Popen(
        [
            sys.executable, "-m", "flows.cli", "submit", str(home / "config.yaml"), "--to", "kubernetes",
            *arguments,
        ],
        cwd=source(),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip


def shown(output: str) -> list[dict[str, Any]]:
    """Return the manifests of a dry run; the lines before them tell of stages."""
    return objects(output[output.index("---\n") :])


def test_a_dry_run_shows_valid_manifests_and_asks_nobody(
    cluster: FakeCluster, student: Path, tmp_path: Path
) -> None:
    config = config_of(tmp_path / "root", student)
    whole = finish(submit(config, cluster, "--dry-run"))
    assert whole.returncode == 0, whole.stderr
    made = shown(whole.stdout)
    assert [one["kind"] for one in made] == ["ConfigMap", "Job"]
    stages = finish(submit(config, cluster, "--dry-run", "--per-stage"))
    assert stages.returncode == 0, stages.stderr
    each = shown(stages.stdout)
    components = [one["metadata"]["labels"]["app.kubernetes.io/component"] for one in each]
    assert components == ["evaluate-0000", "rollout-0000", "label-0000", "recover-0000", "update-0000"]
    for one in [*made, *each]:
        validate(one)
        assert KEY not in json.dumps(one)
    assert cluster.asked == []
    assert not (tmp_path / "root").exists()


@pytest.mark.slow(seconds=50)
@pytest.mark.parametrize("arguments", [(), ("--per-stage",)], ids=["whole", "stages"])
def test_a_training_is_done_by_its_jobs(
    cluster: FakeCluster, student: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    root = tmp_path / "root"
    done = finish(submit(config_of(root, student), cluster, *arguments))
    assert done.returncode == 0, done.stdout + done.stderr
    published = sorted(one.manifest.stage for one in list_artifacts(Store(str(root))))
    assert published == STAGES
    jobs = [one for one in cluster.objects.values() if one["kind"] == "Job"]
    assert len(jobs) == (6 if arguments else 1)
    created = json.dumps(list(cluster.objects.values()))
    files = [file for file in [*root.rglob("*"), *cluster.home.rglob("*.log")] if file.is_file()]
    assert any(file.name == "job.json" for file in files)
    assert not [file for file in files if KEY.encode() in file.read_bytes()]
    assert KEY not in created + done.stdout + done.stderr


@pytest.mark.slow(seconds=50)
def test_a_submission_is_found_again_and_a_failure_has_its_code(
    cluster: FakeCluster, student: Path, tmp_path: Path
) -> None:
    config = config_of(tmp_path / "root", student)
    cluster.hold.clear()
    first = finish(submit(config, cluster, "--detach"))
    assert first.returncode == 0, first.stderr
    (job,) = [own for own, one in cluster.objects.items() if one["kind"] == "Job"]
    message = "Container stage for pod p/a failed with exit code 6 matching FailJob rule at index 1"
    second = submit(config, cluster)
    assert second.stdout is not None
    line = second.stdout.readline()
    assert "found" in line
    assert job.rpartition("/")[2] in line
    cluster.objects[job]["status"] = {
        "conditions": [{"type": "Failed", "status": "True", "message": message}]
    }
    ended = finish(second)
    assert ended.returncode == 6, ended.stderr
    assert len([one for one in cluster.objects.values() if one["kind"] == "Job"]) == 1
