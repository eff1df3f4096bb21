"""The training flow on a real Prefect server and a real MLflow file, and what a person reads of it."""

from __future__ import annotations

import gc
import json
import re
import shutil
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.config import RunConfig
from pivotopd.errors import ArtifactError, StorageError
from pivotopd.models.checkpoint import Policy
from pivotopd.stops import StopSignal
from stages.runner import describe
from stages.runs import open_run
from tests.flows.runs import train
from tests.prefect_database import empty_database
from tests.small_student import small_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_here")]
STAGES = ("rollout", "label", "recover", "update")
NAMES = ["evaluate 0000", *(f"{stage} {i:04d}" for i in (0, 1) for stage in STAGES), "evaluate 0002"]


@dataclass(frozen=True)
class Flown:
    """A flow that ended: its run, and the states of its tasks by name."""

    id: str
    name: str
    state: str
    tasks: dict[str, str]


def fly(config: RunConfig) -> Flown:
    """Run the flow in this process and return what the server knows of it."""
    from flows.train import train as flow

    flow(config.model_dump(mode="json"), return_state=True)
    return flown_last()


def flown_last() -> Flown:
    """Ask the server what it knows of the flow that was started last."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
        tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    return Flown(
        str(run.id), run.name, run.state_name or "", {one.name: one.state_name or "" for one in tasks}
    )


def artifacts(root: Path) -> dict[str, Artifact]:
    return {artifact.path: artifact for artifact in list_artifacts(Store(str(root)))}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def first(student: Path, roots: tuple[Path, Path]) -> Flown:
    return fly(small_config(roots[0], student))


@pytest.fixture(scope="module")
def trained(first: Flown, roots: tuple[Path, Path]) -> dict[str, Artifact]:
    """What the first flow made, before anything else was evaluated."""
    return artifacts(roots[0])


@pytest.fixture(scope="module")
def second(trained: dict[str, Artifact], student: Path, roots: tuple[Path, Path]) -> Flown:
    return fly(small_config(roots[0], student))


def test_every_stage_is_a_task_run_with_its_name(first: Flown) -> None:
    assert first.state == "Completed"
    assert first.name == "small"
    assert first.tasks == dict.fromkeys(NAMES, "Completed")


def test_the_same_run_again_is_cached(second: Flown) -> None:
    assert second.state == "Completed"
    assert second.tasks == dict.fromkeys(NAMES, "Cached")


def test_another_root_gives_the_same_digests_and_the_same_content(
    trained: dict[str, Artifact], student: Path, roots: tuple[Path, Path]
) -> None:
    assert fly(small_config(roots[1], student, tracking__enabled=False)).state == "Completed"
    one, two = trained, artifacts(roots[1])
    assert len(one) == len(NAMES) + 2
    assert one.keys() == two.keys()
    for path, artifact in one.items():
        other = two[path].manifest
        assert artifact.manifest.content_digest == other.content_digest, path
        assert artifact.manifest.counts == other.counts
        assert artifact.manifest.notes == other.notes
    assert sum("weights" in artifact.manifest.notes for artifact in one.values()) == 4


def test_the_collector_leaves_out_what_stands_from_the_first_update_to_the_end(
    student: Path, tmp_path: Path
) -> None:
    from flows.train import Listener, listen

    left_out: dict[str, bool] = {}
    listen(Listener(done=lambda done: left_out.update({describe(done.job): gc.get_freeze_count() > 0})))
    assert fly(small_config(tmp_path, student, tracking__enabled=False)).state == "Completed"
    settled = NAMES.index("update 0000")
    assert [left_out[name] for name in NAMES] == [False] * settled + [True] * (len(NAMES) - settled)
    assert gc.get_freeze_count() == 0


def test_what_is_left_out_keeps_no_policy_alive(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models stay as few as the run keeps, those that stood at the first update go, and none outlives it."""
    from flows.train import Listener, listen
    from stages import work
    from stages.runner import Done

    loaded: list[ref[object]] = []
    load, alive = work.load_policy, {}

    def noted(folder: Path, dtype: str) -> Policy:
        policy = load(folder, dtype)
        loaded.append(ref(policy.model))
        return policy

    def look(done: Done) -> None:
        if done.job.stage == "update":
            gc.collect()
            alive[done.job.iteration] = {index for index, model in enumerate(loaded) if model() is not None}

    monkeypatch.setattr(work, "load_policy", noted)
    listen(Listener(done=look))
    config = small_config(tmp_path, student, tracking__enabled=False, iterations=5, update__idle_limit=5)
    assert fly(config).state == "Completed"
    listen(Listener())  # it holds what it was told
    assert len(alive) == 5
    with_the_learner = work.KEPT_POLICIES + 1
    assert len(loaded) > with_the_learner
    assert max(map(len, alive.values())) <= with_the_learner
    assert alive[0] - alive[4], "the collector holds what stood at the first update"
    gc.collect()
    assert [model for model in loaded if model() is not None] == []


def test_a_stage_s_error_fails_its_task_and_its_flow(student: Path, tmp_path: Path) -> None:
    config = small_config(
        tmp_path, student, method={"name": "grpo"}, rollout__group_size=1, update__invalid_penalty=0.0
    )
    flown = fly(config)
    assert flown.state == "Failed"
    assert flown.tasks["rollout 0000"] == "Completed"
    assert flown.tasks["update 0000"] == "Failed"
    assert "rollout 0001" not in flown.tasks


@pytest.mark.parametrize("wake", [StorageError("gone"), ValueError("closed")])
def test_an_error_in_the_wake_of_a_request_to_stop_is_no_failure(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wake: Exception
) -> None:
    """Closing what was left midway may fail; a StorageError would even be tried again."""
    tries: list[object] = []

    def stopped(work: object, job: object) -> None:
        tries.append(job)
        try:
            raise StopSignal(signal.SIGTERM)
        finally:
            raise wake

    monkeypatch.setattr("stages.evaluate.run", stopped)
    config = small_config(tmp_path, student, name=f"stopped-{type(wake).__name__}")
    with pytest.raises(StopSignal):
        fly(config)
    assert len(tries) == 1
    flown = flown_last()
    assert (flown.name, flown.state, flown.tasks) == (config.name, "Crashed", {"evaluate 0000": "Crashed"})
    _, (run,) = mlflow_of(tmp_path)
    assert run.info.status == "KILLED"


# ---------------------------------------------------------------------------- evaluation


def test_a_run_s_last_policy_is_evaluated_on_other_games_without_new_policies(
    trained: dict[str, Artifact], roots: tuple[Path, Path]
) -> None:
    from flows.evaluate import evaluate

    uri, before = f"{roots[0]}/small", trained
    assert evaluate(uri)["evaluation"] == last_evaluation(before).digest, "as the run evaluated it"
    assert artifacts(roots[0]).keys() == before.keys()
    outcome = evaluate(uri, None, ["environment.generated.seed=9"])
    added = {path: one for path, one in artifacts(roots[0]).items() if path not in before}
    assert sorted(one.manifest.iteration for one in added.values()) == [0, 2]
    last = last_evaluation(added)
    assert outcome == {"evaluation": last.digest}
    assert last.manifest.inputs["policy"] == last_evaluation(before).manifest.inputs["policy"]
    assert last.manifest.inputs["data"] != last_evaluation(before).manifest.inputs["data"]


def last_evaluation(found: dict[str, Artifact]) -> Artifact:
    """Return the evaluation after the second update."""
    (one,) = [a for a in found.values() if (a.manifest.stage, a.manifest.iteration) == ("evaluate", 2)]
    return one


def test_checkpoints_of_other_code_are_not_passed_over_in_silence(
    first: Flown, student: Path, roots: tuple[Path, Path], tmp_path: Path
) -> None:
    from flows.evaluate import prepare

    open_run(small_config(tmp_path, student, seed=1))  # its updates have other digests
    shutil.copytree(roots[0] / "small" / "checkpoints", tmp_path / "small" / "checkpoints")
    for asked in (None, 1, 99):
        with pytest.raises(ArtifactError, match="made by other code"):
            prepare(f"{tmp_path}/small", asked, [])
    assert prepare(f"{tmp_path}/small", 0, [])[2] == 0
    shutil.rmtree(tmp_path / "small" / "checkpoints")
    with pytest.raises(ArtifactError, match="has 0 updates, not 1"):
        prepare(f"{tmp_path}/small", 1, [])


# ------------------------------------------------------------------------------- MLflow


@pytest.fixture(scope="module")
def runs(second: Flown, roots: tuple[Path, Path]) -> tuple[Any, list[Any]]:
    """The MLflow client, and the runs in the root's file after the same run was started twice."""
    return mlflow_of(roots[0])


def mlflow_of(root: Path) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("pivotopd/alfworld/pretrained")
    return client, client.search_runs([experiment.experiment_id])


def test_mlflow_holds_one_run_with_tags_and_metrics_by_iteration(
    runs: tuple[Any, list[Any]], first: Flown, second: Flown, roots: tuple[Path, Path]
) -> None:
    client, found = runs
    (run,) = [one for one in found if one.info.run_name == "small"]
    assert run.info.run_name == "small"
    assert run.info.status == "FINISHED"
    assert run.data.tags["method"] == "pivotopd"
    assert run.data.tags["seed"] == "0"
    assert run.data.tags["prefect_flow_run"] == second.id
    assert re.fullmatch(r"[0-9a-f]{64}", run.data.tags["config_digest"])
    assert run.data.tags["data_train"] != run.data.tags["data_valid"]
    assert run.data.params["rollout.group_size"] == "3"
    for name in ("rollout/success", "update/loss", "update/counts/rows", "rollout/seconds/play"):
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted(one.step for one in history) == [0, 1], name
    assert sorted(m.step for m in client.get_metric_history(run.info.run_id, "evaluate/success")) == [0, 2]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == [
        "config.yaml",
        "templates.json",
    ]


def test_every_artifact_is_a_dataset_input(runs: tuple[Any, list[Any]], trained: dict[str, Artifact]) -> None:
    _, found = runs
    (run,) = [one for one in found if one.info.run_name == "small"]
    inputs = {
        one.dataset.name: json.loads(one.dataset.profile)["digest"] for one in run.inputs.dataset_inputs
    }
    stored = {
        f"{one.manifest.stage}-{one.manifest.iteration:04d}": one.digest
        for one in trained.values()
        if one.manifest.stage != "checkpoint"
    }
    assert inputs == stored
    assert all(one.dataset.digest == inputs[one.dataset.name][:36] for one in run.inputs.dataset_inputs)


def test_an_evaluation_afterwards_leaves_the_training_s_run_alone(
    runs: tuple[Any, list[Any]], trained: dict[str, Artifact], second: Flown, roots: tuple[Path, Path]
) -> None:
    from flows.evaluate import evaluate

    client, found = runs
    (before,) = [one for one in found if one.info.run_name == "small"]
    overrides = ["environment.generated.seed=10", "tracking.model=true"]
    digest = evaluate(f"{roots[0]}/small", None, overrides)["evaluation"]
    after = client.get_run(before.info.run_id)
    assert after.data.tags == before.data.tags
    assert after.data.metrics == before.data.metrics
    (own,) = client.search_runs(
        [before.info.experiment_id],
        filter_string=f"attributes.run_name = 'small evaluate 0002 {digest[:8]}'",
    )
    assert own.info.status == "FINISHED"
    assert own.data.tags["data_valid"] != before.data.tags["data_valid"]
    assert "evaluate/success" in own.data.metrics
    model = client.get_registered_model("pivotopd-alfworld-pretrained")
    assert {name: str(version) for name, version in model.aliases.items()} == {
        "candidate": "1",
        "champion": "1",
    }
    (version,) = client.search_model_versions(f"name = '{model.name}'")
    assert version.run_id == own.info.run_id
    assert (Path(version.source) / "config.json").is_file()
    (judged,) = [tag for tag in version.tags if tag.startswith("pivotopd.success.")]
    assert float(version.tags[judged]) == own.data.metrics["evaluate/success"]


def test_evaluations_are_child_runs(runs: tuple[Any, list[Any]]) -> None:
    _, found = runs
    (parent,) = [one for one in found if one.info.run_name == "small"]
    children = [one for one in found if one.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(one.info.run_name for one in children) == ["evaluate 0000", "evaluate 0002"]
    assert all("evaluate/success" in one.data.metrics for one in children)
    assert all(one.info.status == "FINISHED" for one in children)
    assert len({one.data.tags["policy"] for one in children}) == 2


# ------------------------------------------------------------------- what a person reads


OURS = re.compile(
    r"prompts of the student:|  chat template: none; .*"
    r"|run small: pivotopd, seed 0, 1 iterations, under .*"
    r"|  [a-z ]+: \d+ of \d+"
    r"|(evaluate|rollout|label|recover|update) \d{4} +[\d.]+ s  .*"
    r"|held-out games *|stages *|[┏┡└┃│┳╇┴].*| +\d+ episodes; recovery from \d+ recorded mistakes *"
    r"|whole run: \d+ s|artifacts: .*/small|           pivotopd inspect .*/small"
    r"|MLflow:    (mlflow ui|http://).*|Prefect:   prefect server start .*"
)


def test_a_run_prints_its_own_lines_and_nothing_else_while_mlflow_is_away(
    student: Path, tmp_path: Path
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"  # closed again: nobody listens
    config = small_config(tmp_path / "root", student, iterations=1, tracking__uri=uri)
    done = train(config, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    strange = [line for line in done.stdout.splitlines() if not OURS.fullmatch(line)]
    assert strange == []
    (warning,) = done.stderr.splitlines()
    assert uri in warning
    assert sum(line.startswith("update 0000") for line in done.stdout.splitlines()) == 1


def test_an_unknown_key_ends_before_anything_starts(student: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path / "root", student)
    done = train(config, tmp_path / "home", "recovery.dept=1")
    assert done.returncode == 2
    assert "did you mean 'depth'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "root").exists()
    [database] = (tmp_path / "home" / "prefect").iterdir()
    assert database.read_bytes() == empty_database().read_bytes(), "no server was started"
