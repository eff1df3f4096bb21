"""Reads metrics of runs back from MLflow, by the address of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pivotopd.errors import ConfigError, first_line
from pivotopd.tracking import clean_name
from pivotopd.tracking_mlflow import MlflowTracker, is_run

if TYPE_CHECKING:
    from mlflow import MlflowClient


def read_metrics(
    uri: str, experiment: str, run_uris: Sequence[str], names: Sequence[str]
) -> dict[str, Mapping[str, Mapping[int, float]]]:
    """Return metrics of runs as they stand in MLflow.

    Args:
        uri: Tracking URI.
        experiment: Name of the experiment.
        run_uris: Addresses of the runs.
        names: Names of the metrics.

    Returns:
        Address to name to step to value; an address without a run is left out.

    Raises:
        ConfigError: MLflow cannot be read there, or has no such experiment.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - slow to import
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - slow to import

    tracker = MlflowTracker(uri)
    database = Path(tracker.uri.removeprefix("sqlite:///"))
    if tracker.uri.startswith("sqlite:///") and not database.is_file():  # to read makes no database
        raise ConfigError(
            "there is no MLflow database",
            where=str(database),
            mend="track the runs there first, or set tracking.uri or MLFLOW_TRACKING_URI",
        )
    try:
        client = tracker.connect()
        found = client.get_experiment_by_name(experiment)
        if found is None:
            raise ConfigError(
                f"MLflow has no experiment {experiment!r}",
                where=tracker.uri,
                mend="track the runs there first, or set tracking.uri and tracking.experiment",
            )
        runs = {run: _run_of(client, str(found.experiment_id), run) for run in run_uris}
        return {
            run: {name: _history(client, run_id, name) for name in names}
            for run, run_id in runs.items()
            if run_id is not None
        }
    except (MlflowException, SQLAlchemyError) as error:  # a database that is none is not wrapped by MLflow
        raise ConfigError(
            f"MLflow cannot be read: {first_line(error)[:200]}",
            where=tracker.uri,
            mend="start the server, or set tracking.uri or MLFLOW_TRACKING_URI",
        ) from error


def _run_of(client: MlflowClient, experiment_id: str, run_uri: str) -> str | None:
    found: Sequence[Any] = client.search_runs(
        [experiment_id],
        filter_string=is_run(run_uri),
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return str(found[0].info.run_id) if found else None


def _history(client: MlflowClient, run_id: str, name: str) -> dict[int, float]:
    return {int(one.step): float(one.value) for one in client.get_metric_history(run_id, clean_name(name))}
