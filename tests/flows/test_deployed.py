"""The deployments of prefect.yaml on a real server and worker: by clock, killed, retried, cancelled."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import pytest
import yaml

from pivotopd.artifacts import Store, list_artifacts
from pivotopd.config_files import dump_config
from stages.command import STAGES
from tests.flows.prefect_server import MARK, Platform, kill, marked, project, reporting_to, wait_for
from tests.flows.runs import ROOT
from tests.slurm_node import slurm_node
from tests.small_student import small_config

pytestmark = pytest.mark.slow
PER_ITERATION = ("rollout", "label", "recover", "update")
SMALL_DIAGNOSIS = (
    "split=train", "tasks=4", "temperature=1.0", "repeats=1", "replays=2", "draws=100", "recovery_draws=100",
)  # fmt: skip
TASKS = ["evaluate 0000", *(f"{stage} {i:04d}" for i in (0, 1) for stage in PER_ITERATION), "evaluate 0002"]


def write_config(folder: Path, student: Path, **changes: object) -> Path:
    """Write the configuration of a small run in a root of its own."""
    folder.mkdir(parents=True)
    file = folder / "config.yaml"
    file.write_text(dump_config(small_config(folder / "runs", student, **changes)), encoding="utf-8")
    return file


def contents(folder: Path) -> dict[str, str]:
    """Return address and content digest of everything that a run published."""
    root = folder / "runs"
    return {one.path: one.manifest.content_digest for one in list_artifacts(Store(str(root)))}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def platform(base: Path, student: Path) -> Iterator[Platform]:
    """A server with everything deployed; `train` fires every minute once its schedule is resumed."""
    by_clock = write_config(base / "clock", student)

    def change(content: dict[str, Any]) -> None:
        train = next(one for one in content["deployments"] if one["name"] == "train")
        content["deployments"].append(train | {"name": "by-hand", "schedules": [], "concurrency_limit": None})
        train["parameters"] = {"config_path": str(by_clock), "overrides": []}
        train["schedules"] = [{**train["schedules"][0], "cron": "* * * * *"}]

    (base / "home").mkdir()
    platform = Platform(project(base / "project", change), base / "home")
    try:
        platform.start_server()
        setup = [sys.executable, "infra/prefect/setup.py", "--gpus", "1", "--lost-after-s", "60"]
        assert platform.run(setup) == platform.run(setup), "twice is as good as once"
        platform.prefect("--no-prompt", "deploy", "--all")
        platform.start_worker("first")
        yield platform
    finally:
        platform.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[Any]:
    """A client of the server; flows that are called in this process report there as well."""
    with reporting_to(platform.url) as client:
        yield client


def run_by_hand(platform: Platform, config: Path) -> str:
    """Ask for a training as a person does, and return the flow run's id."""
    return ask(platform, "pivotopd-train/by-hand", config_path=config)


def ask(platform: Platform, deployment: str, *options: str, **parameters: object) -> str:
    """Ask for a flow run of a deployment as a person does, and return its id."""
    given = [word for name, value in parameters.items() for word in ("-p", f"{name}={value}")]
    out = platform.prefect("deployment", "run", deployment, *options, *given)
    return next(line.split("UUID:")[1].strip() for line in out.splitlines() if "UUID:" in line)


def mlflow_runs(folder: Path) -> dict[str, Any]:
    """Return the runs in a root's MLflow by the address that they name."""
    from mlflow import MlflowClient

    tracked = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    found = tracked.search_runs([one.experiment_id for one in tracked.search_experiments()])
    return {one.data.tags["pivotopd.run_uri"]: one for one in found}


def state(client: Any, run: str) -> str:
    return str(client.read_flow_run(run).state_name)


def ended(client: Any, run: str) -> bool:
    return bool(client.read_flow_run(run).state.is_final())


def tasks_of(client: Any, run: str) -> dict[str, str]:
    """Return the last state of each of a flow run's tasks by name."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run)])))
    return {one.name: str(one.state_name) for one in sorted(tasks, key=lambda one: one.expected_start_time)}


def lines_of(client: Any, name: str) -> list[str]:
    """Return the log of the flow runs whose name begins so, once it has any stale artifact in it."""

    def look() -> list[str]:
        runs = [str(one.id) for one in client.read_flow_runs() if one.name.startswith(name)]
        wanted = {"level": {"ge_": 20}, "flow_run_id": {"any_": runs}}
        body = {
            "limit": 200,
            "sort": "TIMESTAMP_ASC",
            "logs": wanted,
        }
        lines = [one["message"] for one in client.request("POST", "/logs/filter", json=body).json()]
        return lines if any("to bring it up to date" in line for line in lines) else []

    return wait_for(look, "what is stale")


@pytest.fixture(scope="module")
def killed(platform: Platform, client: Any, base: Path, student: Path) -> tuple[str, set[str]]:
    """A training whose worker and own process were killed after its first stages, and what it had done."""
    run = run_by_hand(platform, write_config(base / "killed", student))
    wait_for(lambda: len(contents(base / "killed")) >= 3, "three artifacts")
    kill(marked(f"{MARK}=first"))
    wait_for(lambda: not marked(f"{MARK}=first"), "the end of the worker")
    done = {one.name for one in client.read_task_runs() if one.state_name == "Completed"}
    assert state(client, run) == "Running", "nobody was left to say anything else"
    platform.start_worker("second")
    return run, done


@pytest.fixture(scope="module")
def by_clock(platform: Platform, client: Any, killed: tuple[str, set[str]]) -> str:
    """Id of the first flow run that the clock started, which has ended."""
    deployment = client.read_deployment_by_name("pivotopd-train/train")
    [schedule] = deployment.schedules
    client.update_deployment_schedule(deployment.id, schedule.id, active=True)

    def first() -> Any:
        runs = [one for one in client.read_flow_runs() if one.deployment_id == deployment.id]
        return next((one for one in runs if one.state.is_final() or one.state.is_running()), None)

    run = wait_for(first, "the clock")
    client.update_deployment_schedule(deployment.id, schedule.id, active=False)
    wait_for(lambda: ended(client, str(run.id)), "the end of the scheduled run")
    return str(run.id)


# ------------------------------------------------------------------- what is deployed


def test_every_deployment_of_the_file_is_there_with_its_form(client: Any) -> None:
    content = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    there = {one.name: one for one in client.read_deployments()}
    assert there.keys() == {one["name"] for one in content["deployments"]} | {"by-hand"}
    assert {one.work_pool_name for one in there.values()} == {
        "pivotopd",
        "pivotopd-slurm",
        "pivotopd-kubernetes",
    }
    form = there["stage"].parameter_openapi_schema
    assert form["required"] == ["run", "stage"]
    assert sorted(form["properties"]["stage"]["enum"]) == sorted(STAGES)
    assert form["properties"]["run"]["description"] == "Address of the run, ROOT/NAME."
    assert form["properties"]["overrides"]["items"] == {"type": "string"}
    root = there["evaluate-newest"].parameters["root"]
    assert Path(root).is_absolute(), "the variable that the set-up wrote"


def test_the_form_s_stages_are_those_of_the_command_line() -> None:
    from flows.deployed import Stage

    assert sorted(get_args(Stage)) == sorted(STAGES)


def test_a_value_that_the_form_refuses_starts_nothing(client: Any) -> None:
    from prefect.exceptions import ParameterTypeError

    from flows.deployed import stage

    before = len(client.read_flow_runs())
    wrong: Any = "no-such-stage"
    with pytest.raises(ParameterTypeError, match="stage: Input should be"):
        stage.validate_parameters({"run": "runs/small", "stage": wrong})
    assert len(client.read_flow_runs()) == before


# --------------------------------------------------------------------- trainings


def test_a_scheduled_training_fires_and_finishes(
    client: Any, by_clock: str, killed: tuple[str, set[str]], base: Path
) -> None:
    run = client.read_flow_run(by_clock)
    assert run.auto_scheduled
    assert run.state_name == "Completed"
    assert tasks_of(client, by_clock) == dict.fromkeys(TASKS, "Completed")
    assert len(contents(base / "clock")) == len(TASKS) + 2


def test_each_iteration_shows_a_table_and_links(client: Any, by_clock: str, base: Path) -> None:
    body = {"artifacts": {"flow_run_id": {"any_": [by_clock]}}}
    found = client.request("POST", "/artifacts/filter", json=body).json()
    tables = [one for one in found if one["key"] == "small-metrics"]
    assert len(tables) == 3, "two iterations, and the evaluation at the end"
    rows = [row for one in tables for row in json.loads(one["data"])]
    assert {row["stage"] for row in rows} == set(TASKS)
    assert {"loss", "success", "pivotal"} <= {row["metric"] for row in rows}
    links = [one["data"] for one in found if one["key"] == "small-links"]
    assert len(links) == 3
    assert all("mlflow ui --backend-store-uri" in text for text in links), "a file has no page of its own"
    for path in contents(base / "clock"):
        if "checkpoint" not in path:
            assert any(path in text for text in links), path


def test_a_run_whose_worker_died_is_found_crashed_and_its_retry_ends_with_the_same(
    platform: Platform, client: Any, killed: tuple[str, set[str]], by_clock: str, base: Path
) -> None:
    run, done = killed
    wait_for(lambda: state(client, run) == "Crashed", "the automation for lost flow runs")
    platform.prefect("flow-run", "retry", run)
    wait_for(lambda: ended(client, run), "the retry")
    flown = client.read_flow_run(run)
    assert flown.state_name == "Completed"
    assert flown.run_count == 2
    states = tasks_of(client, run)
    assert states.keys() == set(TASKS)
    cached = {name for name, last in states.items() if last == "Cached"}
    assert done <= cached
    assert "update 0001" not in cached
    assert contents(base / "killed") == contents(base / "clock")


def test_cancel_leaves_no_process_behind(
    platform: Platform, client: Any, by_clock: str, base: Path, student: Path
) -> None:
    before = marked(f"{MARK}=second").keys()
    run = run_by_hand(platform, write_config(base / "cancelled", student, iterations=50))
    wait_for(lambda: contents(base / "cancelled"), "an artifact")
    assert len(marked(f"{MARK}=second").keys() - before) >= 1
    platform.prefect("flow-run", "cancel", run)
    wait_for(lambda: state(client, run) == "Cancelled", "the cancellation")
    wait_for(lambda: marked(f"{MARK}=second").keys() <= before, "the end of the run's processes")
    tracked = mlflow_runs(base / "cancelled")
    assert tracked[f"{base}/cancelled/runs/small"].info.status == "KILLED"


# ------------------------------------------------------- comparisons and diagnoses


def test_a_comparison_and_a_diagnosis_show_their_reports(
    platform: Platform, client: Any, by_clock: str, base: Path, student: Path
) -> None:
    """Both at once: the worker's processes, the comparison's runs and their reports."""
    home = base / "compared"
    write_config(home, student, iterations=1, evaluation__recovery_mistakes=0)
    arms = {"pivotopd": {}, "preventive_only": {"recovery.depth": 0}}
    said = {"name": "by-worker", "base": "config.yaml", "seeds": [0], "methods": arms}
    (home / "experiment.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    compared = ask(platform, "pivotopd-compare/compare", path=home / "experiment.yaml", jobs=2)
    settings = [f"diagnosis.{one}" for one in SMALL_DIAGNOSIS]
    address = base / "clock/runs/small"
    diagnosed = ask(platform, "pivotopd-diagnose/diagnose", run=address, overrides=json.dumps(settings))
    wait_for(lambda: ended(client, compared) and ended(client, diagnosed), "the end of both")
    for run in (compared, diagnosed):
        assert state(client, run) == "Completed", client.read_flow_run(run).state.message

    shown = {one["key"]: one["data"] for one in client.request("POST", "/artifacts/filter", json={}).json()}
    assert "\n| preventive_only | " in shown["by-worker-comparison-report"]
    [page] = (home / "runs/comparisons").glob("*/report.html")
    assert "preventive_only" in page.read_text(encoding="utf-8")
    assert shown["small-diagnosis-report"].startswith("# ")
    states = tasks_of(client, diagnosed)
    assert {"diagnose 0000", "diagnose 0002", "diagnosis_report 0002"} <= states.keys()
    assert set(states.values()) == {"Completed"}


# ------------------------------------------------------- a node of SLURM


@pytest.fixture(scope="module")
def slurm_pool(platform: Platform) -> Iterator[None]:
    """A node of SLURM and a worker of its pool."""
    with slurm_node() as conf:
        platform.start_worker("slurm", "pivotopd-slurm", SLURM_CONF=str(conf))
        yield
        # A node that stops under a job leaves the job's watcher behind.
        wait_for(lambda: not any("srun" in one for one in marked(f"{MARK}=slurm").values()), "the jobs")
        kill(marked(f"{MARK}=slurm"))


SMALL_JOB = ("-jv", "memory_gb=2", "-jv", "cpus=1", "-jv", "gpus=0")


def test_a_stage_is_run_again_as_a_job_of_slurm(
    platform: Platform, client: Any, by_clock: str, base: Path, slurm_pool: None
) -> None:
    before = contents(base / "clock")
    address = f"{base}/clock/runs/small"
    run = ask(
        platform, "pivotopd-stage/stage-slurm", *SMALL_JOB,
        run=address, stage="recover", iteration=1, overrides='["recovery.limit=3"]', only="true",
    )  # fmt: skip
    wait_for(lambda: ended(client, run), "the flow")
    assert state(client, run) == "Completed", client.read_flow_run(run).state.message
    [added] = contents(base / "clock").keys() - before.keys()
    assert "/0001/recover/" in added
    rerun = mlflow_runs(base / "clock")[f"{base}/clock/runs/{added}"]
    assert rerun.data.tags["slurm_job"] == "1"


def test_a_cancelled_job_of_slurm_ends_its_run_in_mlflow(
    platform: Platform, client: Any, base: Path, student: Path, slurm_pool: None
) -> None:
    home = base / "cancelled-job"
    config = write_config(home, student, iterations=50)
    run = ask(platform, "pivotopd-train/train-slurm", *SMALL_JOB, config_path=config)
    wait_for(lambda: contents(home), "an artifact")
    platform.prefect("flow-run", "cancel", run)
    wait_for(lambda: state(client, run) == "Cancelled", "the cancellation")
    wait_for(lambda: not any("srun" in one for one in marked(f"{MARK}=slurm").values()), "the end of the job")
    assert mlflow_runs(home)[f"{home}/runs/small"].info.status == "KILLED"


# ------------------------------------------------------- flows in this process, same server


def test_the_newest_checkpoint_is_evaluated(client: Any, by_clock: str, base: Path) -> None:
    from flows.deployed import evaluate_newest

    before = contents(base / "clock")
    outcome: Any = evaluate_newest(str(base / "clock/runs"))
    [last] = [path for path in before if "/0002/evaluate/" in path]
    assert last.endswith(outcome["evaluation"])
    assert contents(base / "clock") == before, "the run has evaluated it already"
    failed = evaluate_newest(str(base / "none"), return_state=True)
    assert failed.is_failed()
    assert "no run here has an update yet" in str(failed.message)


def test_a_stage_is_run_again_with_a_slot_of_the_gpu_limit(
    platform: Platform, client: Any, by_clock: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import stages.rollout
    from flows.deployed import stage
    from flows.tasks import GPU_LIMIT

    def taken() -> int:
        return int(client.read_global_concurrency_limit_by_name(GPU_LIMIT).active_slots)

    seen: list[int] = []
    run = stages.rollout.run

    def watched(work: Any, job: Any) -> Any:
        seen.append(taken())
        return run(work, job)

    monkeypatch.setattr(stages.rollout, "run", watched)
    address, before = f"{base}/clock/runs/small", contents(base / "clock")
    smaller = "rollout.group_size=2"
    outcome: Any = stage(address, "rollout", 0, [smaller, "launch.resources.gpus=1"], only=True)
    [added] = contents(base / "clock").keys() - before.keys()
    assert added.endswith(outcome["rollout 0000"])
    assert contents(base / "clock").items() >= before.items(), "the old artifact stays"
    told = [
        line for line in lines_of(client, "rollout of") if line.startswith("  ") and "pivotopd" not in line
    ]
    stale = {" ".join(line.split()[:-1]) for line in told}
    assert {"label 0000", "update 0000", "rollout 0001", "evaluate 0002"} <= stale
    assert not stale & {"rollout 0000", "evaluate 0000"}
    stage(address, "rollout", 0, [smaller, "launch.resources.gpus=1"], only=True)
    stage(address, "rollout", 1, [smaller], only=True)
    runs = mlflow_runs(base / "clock")
    rerun = runs[f"{base}/clock/runs/{added}"]
    assert rerun.data.tags["mlflow.parentRunId"] == runs[address].info.run_id
    assert rerun.info.status == "FINISHED"
    assert seen == [1, 0], "a slot, then nothing for what is published, then none for a stage without GPU"
    assert taken() == 0
