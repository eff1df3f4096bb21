"""MLflow as a tracker: resumable runs, batched in the background, lineage by dataset inputs.

Only MLflow's client is used, never its global "active run": that one obeys MLFLOW_RUN_ID, which would pull a
child run into its parent. A server that is away costs one warning; what was logged meanwhile is sent when it
is back, as long as the process lives.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from pivotopd.outbox import Outbox
from pivotopd.tracking import (
    Checkpoint,
    RunStatus,
    Tracker,
    clean_metrics,
    clean_name,
    flatten,
    without_password,
)
from pivotopd.tracking_models import judge_version, register_version

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_URI_TAG = "pivotopd.run_uri"
RUN_KEY_TAG = "pivotopd.run_key"
"""Hash of an address that no filter can quote: it has both kinds of quotes."""
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
TAG_CHARACTERS = 5000
DATASET_DIGEST_CHARACTERS = 36
"""MLflow's limit; the whole digest is in the dataset's profile."""
FLUSH_S = 120.0
KILLED_FLUSH_S = 15.0
"""The same at the end of a run that was asked to stop: SLURM and Prefect kill what lives 30 s later."""
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
"""Set where the user has not: no telemetry, no chatter, one more try; a busy server can need 10 s."""

T = TypeVar("T")


@dataclass(slots=True)
class _Run:
    """One MLflow run, as the background thread knows it."""

    identity: str
    run_id: str | None = None
    resumed: bool = False
    metrics_before: frozenset[str] = frozenset()
    logged: dict[str, set[int]] = field(default_factory=dict)

    @property
    def opened(self) -> str:
        """Id of the run; deliveries run in order, so it is open before anything is logged to it."""
        if self.run_id is None:
            raise RuntimeError("the run was refused by the server")
        return self.run_id


class MlflowTracker:
    """A :class:`~pivotopd.tracking.Tracker` on MLflow.

    Args:
        uri: Tracking URI, such as ``sqlite:////data/runs/mlflow.db`` or ``http://host:5000``.
    """

    def __init__(self, uri: str) -> None:
        self.uri = without_password(uri)
        self._address = _with_password_apart(uri)
        secret = urlsplit(self._address).netloc.rpartition("@")
        self._outbox = Outbox(f"MLflow at {self.uri}", _refused, secret="".join(secret[:2]))
        self._client: MlflowClient | None = None
        self._experiment_id: str | None = None
        self._experiment = ""
        self._run: _Run | None = None
        self._below = False

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run, once it is open."""
        return self._run.run_id if self._run else None

    def start(
        self,
        name: str,
        *,
        experiment: str,
        tags: Mapping[str, str],
        config: Mapping[str, Any],
        run_uri: str,
        parent_uri: str | None = None,
    ) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        self._be_quiet()
        # Here and not in the background: two threads that import at once can see half-made modules.
        import mlflow  # noqa: F401, PLC0415 - slow to import

        self._experiment = experiment
        self._run = run = _Run(run_uri)
        params = flatten(config)
        self._outbox.put(lambda: self._open(run, name, tags, parent=None))
        if parent_uri is not None:
            self._outbox.put(lambda: self._place_below(run, parent_uri))
        self._outbox.put(lambda: self._log_params(run, params))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run, cleaned, now_ms = self._started(), clean_metrics(metrics), int(time.time() * 1000)
        self._outbox.put(lambda: self._log_metrics(run, cleaned, step, now_ms))

    def log_input(self, name: str, *, digest: str, uri: str, rows: int, context: str) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: self._log_input(run, name, digest, uri, rows, context))

    def log_text(self, path: str, text: str) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: self._connect().log_text(run.opened, text, path), apart=True)

    def log_files(self, folder: Path) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: self._connect().log_artifacts(run.opened, str(folder)), apart=True)

    def child(self, name: str, *, tags: Mapping[str, str]) -> Tracker:
        """See :class:`~pivotopd.tracking.Tracker`."""
        parent = self._started()
        below = MlflowTracker(self._address)
        below._outbox, below._experiment, below._below = self._outbox, self._experiment, True
        below._run = run = _Run(f"{parent.identity}#{name}")

        def open_below() -> None:
            below._client, below._experiment_id = self._client, self._experiment_id
            below._open(run, name, tags, parent=parent)

        self._outbox.put(open_below)
        return below

    def finish(self, status: RunStatus = "FINISHED") -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: self._connect().set_terminated(run.opened, status=status))
        if not self._below:  # what a child logs goes with its parent: an evaluation waits for no server
            self._outbox.flush(KILLED_FLUSH_S if status == "KILLED" else FLUSH_S)

    def flush(self) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        self._outbox.flush(FLUSH_S)

    def log_file(self, path: str, data: bytes) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: self._log_file(run, path, data), apart=True)

    def adopt(self, run_uri: str) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: self._adopt(run, run_uri))

    def page(self) -> str | None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        if not self.uri.startswith("http") or self.run_id is None or self._experiment_id is None:
            return None
        return f"{self.uri.rstrip('/')}/#/experiments/{self._experiment_id}/runs/{self.run_id}"

    def register(self, model: str, checkpoint: Checkpoint) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        run = self._started()
        self._outbox.put(lambda: register_version(self._connect(), model, checkpoint, run.opened))

    def judge(self, model: str, digest: str, *, success: float, panel: str) -> None:
        """See :class:`~pivotopd.tracking.Tracker`."""
        self._started()
        self._outbox.put(lambda: judge_version(self._connect(), model, digest, success, panel))

    def _started(self) -> _Run:
        if self._run is None:
            raise RuntimeError("the tracker is not started")
        return self._run

    def connect(self) -> MlflowClient:
        """Return MLflow's client, to read with."""
        self._be_quiet()
        return self._connect()

    def _be_quiet(self) -> None:
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        if self.uri.startswith("http"):
            logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # our one warning says it

    # What follows runs on the background thread.

    def _connect(self) -> MlflowClient:
        if self._client is None:
            from mlflow import MlflowClient  # noqa: PLC0415 - slow to import

            if self.uri.startswith("sqlite:///"):
                Path(self.uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(tracking_uri=self._address)
        return self._client

    def _open(self, run: _Run, name: str, tags: Mapping[str, str], parent: _Run | None) -> None:
        """Find the run of an identity, or create it."""
        client, experiment_id = self._connect(), self._find_experiment()
        found = self._search(run.identity)
        wanted = {clean_name(key): str(value)[:TAG_CHARACTERS] for key, value in tags.items()}
        wanted[RUN_URI_TAG] = run.identity
        if _unquotable(run.identity):
            wanted[RUN_KEY_TAG] = _key(run.identity)
        if parent is not None:
            wanted["mlflow.parentRunId"] = parent.opened
        if found:
            run.resumed = True
            run.run_id = str(found[0].info.run_id)
            run.metrics_before = frozenset(found[0].data.metrics)
            client.update_run(run.run_id, status="RUNNING", name=name)
            for key, value in wanted.items():
                client.set_tag(run.run_id, key, value)
        else:
            created = client.create_run(experiment_id, tags=wanted, run_name=name)
            run.run_id = str(created.info.run_id)

    def _search(self, identity: str) -> Sequence[Any]:
        """Return the newest run of an identity, if there is one."""
        found: Sequence[Any] = self._connect().search_runs(
            [self._find_experiment()],
            filter_string=is_run(identity),
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
        return found

    def _place_below(self, run: _Run, parent_uri: str) -> None:
        """Show a run below another one of the experiment, where that is tracked."""
        for parent in self._search(parent_uri):
            self._connect().set_tag(run.opened, "mlflow.parentRunId", str(parent.info.run_id))

    def _find_experiment(self) -> str:
        if self._experiment_id is None:
            client = self._connect()
            found = client.get_experiment_by_name(self._experiment)
            self._experiment_id = found.experiment_id if found else self._create_experiment(client)
        return self._experiment_id

    def _create_experiment(self, client: MlflowClient) -> str:
        """Create the experiment; beside a sqlite file, its artifacts go into a folder next to it."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - slow to import

        location = None
        if self.uri.startswith("sqlite:///"):
            folder = Path(self.uri.removeprefix("sqlite:///")).absolute().parent / "mlflow-artifacts"
            location = folder.as_uri()
        try:
            return str(client.create_experiment(self._experiment, artifact_location=location))
        except MlflowException:
            found = client.get_experiment_by_name(self._experiment)
            if found is None:
                raise
            return str(found.experiment_id)  # another process was first

    def _adopt(self, run: _Run, identity: str) -> None:
        for found in self._search(identity):
            self._connect().set_tag(str(found.info.run_id), "mlflow.parentRunId", run.opened)

    def _log_file(self, run: _Run, path: str, data: bytes) -> None:
        folder, _, name = path.rpartition("/")
        with tempfile.TemporaryDirectory() as held:
            file = Path(held) / name
            file.write_bytes(data)
            self._connect().log_artifact(run.opened, str(file), folder or None)

    def _log_params(self, run: _Run, params: Mapping[str, str]) -> None:
        """Log parameters; those a resumed run has are left alone, since MLflow's cannot change."""
        from mlflow.entities import Param  # noqa: PLC0415 - slow to import

        client = self._connect()
        present = client.get_run(run.opened).data.params if run.resumed else {}
        new = [Param(key, value) for key, value in params.items() if key not in present]
        for batch in _batches(new, PARAMS_PER_BATCH):
            client.log_batch(run.opened, params=batch)

    def _log_metrics(self, run: _Run, metrics: Mapping[str, float], step: int, now_ms: int) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415 - slow to import

        client = self._connect()
        new = [
            Metric(key, value, now_ms, step)
            for key, value in metrics.items()
            if step not in self._steps(client, run, key)
        ]
        for batch in _batches(new, METRICS_PER_BATCH):
            client.log_batch(run.opened, metrics=batch)
            for metric in batch:
                run.logged[metric.key].add(step)

    @staticmethod
    def _steps(client: MlflowClient, run: _Run, key: str) -> set[int]:
        """Return the steps at which a metric is logged; asked once a metric of a resumed run."""
        if key not in run.logged:
            history = client.get_metric_history(run.opened, key) if key in run.metrics_before else []
            run.logged[key] = {int(metric.step) for metric in history}
        return run.logged[key]

    def _log_input(self, run: _Run, name: str, digest: str, uri: str, rows: int, context: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag  # noqa: PLC0415 - slow to import

        scheme = uri.partition("://")[0] if "://" in uri else "local"
        dataset = Dataset(
            name=clean_name(name),
            digest=digest[:DATASET_DIGEST_CHARACTERS],
            source_type=scheme,
            source=json.dumps({"uri": uri}),
            profile=json.dumps({"num_rows": rows, "digest": digest}),
        )
        tags = [InputTag("mlflow.data.context", context)]
        self._connect().log_inputs(run.opened, [DatasetInput(dataset, tags)])


def _with_password_apart(uri: str) -> str:
    """Return the address to connect to; a server's password goes where MLflow looks and is in no error."""
    parts = urlsplit(uri)
    if parts.scheme not in {"http", "https"} or "@" not in parts.netloc:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username or "")
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return without_password(uri)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _refused(error: Exception) -> bool:
    """Say whether the server will refuse the same again: a request it calls wrong, or a defect here."""
    status: Callable[[], int] | None = getattr(error, "get_http_status_code", None)
    if status is not None:
        return 400 <= status() < 500 and status() not in {408, 429}
    if isinstance(error, json.JSONDecodeError):  # a page of whoever stands before the server
        return False
    return isinstance(error, TypeError | ValueError | AttributeError | RuntimeError)


def is_run(identity: str) -> str:
    """Return the filter that finds the run of an address; MLflow's grammar escapes no quotes."""
    if _unquotable(identity):
        return f"tags.`{RUN_KEY_TAG}` = '{_key(identity)}'"
    quote = '"' if "'" in identity else "'"
    return f"tags.`{RUN_URI_TAG}` = {quote}{identity}{quote}"


def _unquotable(identity: str) -> bool:
    return "'" in identity and '"' in identity


def _key(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()
