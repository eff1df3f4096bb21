"""Checkpoints as model versions: registered once, the newest is candidate, the best evaluated champion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError
from pivotopd.tracking import Checkpoint, model_of
from pivotopd.tracking_mlflow import MlflowTracker

pytestmark = pytest.mark.slow
PANEL, OTHER = "a" * 64, "b" * 64


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(f"{number:064x}", f"{number + 100:064x}", f"s3://b/x/{number}", "s3://b/run", number)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> MlflowTracker:
    tracker = MlflowTracker(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
    tracker.start("r", experiment="e", tags={}, config={}, run_uri="s3://b/run")
    tracker.flush()
    return tracker


def client_of(tracker: MlflowTracker) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracker.uri)


def aliases(tracker: MlflowTracker, model: str) -> dict[str, int]:
    tracker.flush()
    found = client_of(tracker).get_registered_model(model).aliases
    return {name: int(version) for name, version in found.items()}


def test_a_version_refers_to_the_checkpoint_and_is_made_once(tracker: MlflowTracker) -> None:
    for number in (0, 1, 0, 1, 0):  # a run that goes on reports everything again
        tracker.register("once", checkpoint(number))
    assert aliases(tracker, "once") == {"candidate": 2}
    versions = client_of(tracker).search_model_versions("name = 'once'")
    assert sorted(one.source for one in versions) == ["s3://b/x/0", "s3://b/x/1"]
    assert {one.run_id for one in versions} == {tracker.run_id}
    second = client_of(tracker).get_model_version("once", "2")
    assert second.tags == {
        "pivotopd.checkpoint": checkpoint(1).digest,
        "pivotopd.content": checkpoint(1).content_digest,
        "pivotopd.run_uri": "s3://b/run",
        "pivotopd.iteration": "1",
    }


def test_beside_a_database_a_version_may_be_a_folder(tracker: MlflowTracker, tmp_path: Path) -> None:
    there = Checkpoint("1" * 64, "2" * 64, str(tmp_path / "a model"), str(tmp_path), 3)
    tracker.register("local", there)
    assert aliases(tracker, "local") == {"candidate": 1}
    assert client_of(tracker).get_model_version_by_alias("local", "candidate").source == there.source


def test_a_champion_is_beaten_only_by_a_higher_success_on_the_same_panel(tracker: MlflowTracker) -> None:
    def judge(number: int, success: float, panel: str = PANEL) -> int | None:
        tracker.register("judged", checkpoint(number))
        tracker.judge("judged", checkpoint(number).digest, success=success, panel=panel)
        return aliases(tracker, "judged").get("champion")

    tracker.register("judged", checkpoint(0))
    assert "champion" not in aliases(tracker, "judged")
    assert judge(0, 0.25) == 1, "the first that is judged"
    assert judge(1, 0.25) == 1, "a tie keeps the old one"
    assert judge(2, 0.125) == 1
    assert judge(3, 1.0, OTHER) == 1, "the champion was never measured on that panel"
    assert judge(4, 0.5) == 5
    assert judge(0, 0.25) == 5, "what is reported again changes nothing"
    assert aliases(tracker, "judged") == {"candidate": 5, "champion": 5}
    judged = client_of(tracker).get_model_version("judged", "5")
    assert judged.tags["pivotopd.success." + "a" * 16] == "0.5"


def test_a_champion_measured_on_another_panel_meets_the_best_there(
    tracker: MlflowTracker,
) -> None:
    def judge(number: int, success: float, panel: str) -> int | None:
        tracker.register("panels", checkpoint(number))
        tracker.judge("panels", checkpoint(number).digest, success=success, panel=panel)
        return aliases(tracker, "panels").get("champion")

    assert judge(0, 0.5, PANEL) == 1
    assert judge(1, 0.75, OTHER) == 1
    assert judge(2, 0.75, OTHER) == 1
    assert judge(0, 0.25, OTHER) == 2, "the older of the two best"


def test_what_two_runs_that_judged_at_once_left_is_mended_by_the_next(tracker: MlflowTracker) -> None:
    for number, success in ((0, 0.25), (1, 0.75), (2, 0.5)):
        tracker.register("raced", checkpoint(number))
        tracker.judge("raced", checkpoint(number).digest, success=success, panel=PANEL)
    assert aliases(tracker, "raced")["champion"] == 2
    client_of(tracker).set_registered_model_alias("raced", "champion", "3")  # both had read the first's 0.25
    tracker.judge("raced", checkpoint(0).digest, success=0.25, panel=PANEL)
    assert aliases(tracker, "raced")["champion"] == 2


def test_a_checkpoint_that_is_no_version_is_left_alone(tracker: MlflowTracker) -> None:
    tracker.register("known", checkpoint(0))
    tracker.judge("known", checkpoint(9).digest, success=1.0, panel=PANEL)
    assert aliases(tracker, "known") == {"candidate": 1}


def test_names_and_where_a_registry_can_refer_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def config(register: bool | str, uri: str | None = None, root: str = str(tmp_path)) -> RunConfig:
        return RunConfig.model_validate({"root": root, "tracking": {"model": register, "uri": uri}})

    assert model_of(config(False)) is None
    assert model_of(config(True)) == "pivotopd-alfworld-tiny"
    assert model_of(config("my model")) == "my model"
    assert model_of(config("m", "http://host:5000", "s3://bucket/runs")) == "m"
    with pytest.raises(ConfigError, match="cannot refer to a checkpoint") as caught:
        model_of(config("m", "http://host:5000"))
    assert caught.value.where == "tracking.model"
    with pytest.raises(ValueError, match="a name of up to 100 letters"):
        config("it's/mine")
