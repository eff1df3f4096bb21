"""Where metrics go: one interface, MLflow or nothing behind it. A tracker never stops a run.

The same metrics are also written as JSON lines into each stage's artifact (:func:`jsonl`), so that a run can
be read without MLflow. MLflow itself is imported when a tracker starts, not before.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

from pivotopd.blobs import Blobs
from pivotopd.config import RunConfig, TrackingSection
from pivotopd.errors import ConfigError

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
NAME_CHARACTERS = 250
PARAM_CHARACTERS = 500
"""Parameter values are cut here, which every MLflow server takes; config.yaml holds them whole."""
DROPPED = "tracking/dropped"
_FOREIGN = re.compile(r"[^A-Za-z0-9_\-./ :]")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A policy's weights in the store, as a model registry refers to them.

    Attributes:
        digest: Digest of the work that made it.
        content_digest: Digest of the weights and tokenizer.
        source: Address of the Hugging Face model folder.
        run_uri: Address of the run.
        iteration: Training iteration whose update made it.
    """

    digest: str
    content_digest: str
    source: str
    run_uri: str
    iteration: int


class Tracker(Protocol):
    """A sink for one run's metrics, texts and lineage; no method raises because the sink fails."""

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
        """Open the run, or the one that an earlier process opened for the same ``run_uri``.

        Args:
            name: Name of the run.
            experiment: Experiment it belongs to.
            tags: Method, seed, configuration digest, commit and the like.
            config: The resolved configuration; logged as flat parameters.
            run_uri: Address of the run in the store: its identity across restarts.
            parent_uri: Address of the run that it belongs to: shown below that one where that is tracked.
        """

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics of a step (training iteration); a (name, step) that is there already is left alone."""

    def log_input(self, name: str, *, digest: str, uri: str, rows: int, context: str) -> None:
        """Log that the run read or made an artifact, so that a metric leads back to its rows.

        Args:
            name: Name of the dataset, such as ``rollout-0003``.
            digest: Artifact digest.
            uri: Artifact address.
            rows: Number of rows.
            context: Role, such as ``rollout``.
        """

    def log_text(self, path: str, text: str) -> None:
        """Attach a text file, such as ``config.yaml`` or a report, to the run."""

    def log_files(self, folder: Path) -> None:
        """Attach the files of a local folder, such as plots; it must stay while the process lives."""

    def child(self, name: str, *, tags: Mapping[str, str]) -> Tracker:
        """Open (or open again) a run below this one, such as an evaluation; already started."""

    def finish(self, status: RunStatus = "FINISHED") -> None:
        """Close the run, waiting a bounded time for what is still on its way; a child waits for nothing."""

    def flush(self) -> None:
        """Wait a bounded time until what was logged has arrived, such as before other processes log."""

    def log_file(self, path: str, data: bytes) -> None:
        """Attach a file, such as a figure, to the run."""

    def adopt(self, run_uri: str) -> None:
        """Put the run of an address below this one, if there is one in the same experiment."""

    def page(self) -> str | None:
        """Return the web address of the run; None where no server shows it or it is not open yet."""

    def register(self, model: str, checkpoint: Checkpoint) -> None:
        """Make a checkpoint a version of a registered model, once; the newest version is ``candidate``."""

    def judge(self, model: str, digest: str, *, success: float, panel: str) -> None:
        """Note a version's success on a panel; it becomes ``champion`` where it beats the champion there.

        Args:
            model: Name of the registered model.
            digest: Digest of the version's checkpoint.
            success: Share of the panel's episodes won.
            panel: Fingerprint of the panel: successes on different panels are not compared.
        """


class NoTracker:
    """Keeps nothing: ``tracking.enabled: false``."""

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
        """Do nothing."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def log_input(self, name: str, *, digest: str, uri: str, rows: int, context: str) -> None:
        """Do nothing."""

    def log_text(self, path: str, text: str) -> None:
        """Do nothing."""

    def log_files(self, folder: Path) -> None:
        """Do nothing."""

    def child(self, name: str, *, tags: Mapping[str, str]) -> Tracker:
        """Return a tracker that keeps nothing either."""
        del name, tags
        return self

    def finish(self, status: RunStatus = "FINISHED") -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def log_file(self, path: str, data: bytes) -> None:
        """Do nothing."""

    def adopt(self, run_uri: str) -> None:
        """Do nothing."""

    def page(self) -> str | None:
        """Return None: nothing shows it."""
        return None

    def register(self, model: str, checkpoint: Checkpoint) -> None:
        """Do nothing."""

    def judge(self, model: str, digest: str, *, success: float, panel: str) -> None:
        """Do nothing."""


def open_tracker(section: TrackingSection, root: str) -> Tracker:
    """Return the tracker that a configuration asks for; it is not started.

    Raises:
        ConfigError: The storage root is remote and no tracking URI is given.
    """
    if not section.enabled:
        return NoTracker()
    from pivotopd.tracking_mlflow import MlflowTracker  # noqa: PLC0415 - only where it is asked for

    return MlflowTracker(tracking_uri(section.uri, root))


def experiment_of(config: RunConfig) -> str:
    """Return the name of the MLflow experiment that a run belongs to."""
    return config.tracking.experiment or f"pivotopd/{config.environment.name}/{config.student.kind}"


def model_of(config: RunConfig) -> str | None:
    """Return the name of the registered model that a run's checkpoints are versions of, or None.

    Raises:
        ConfigError: A server is asked to refer to a folder of this machine, which it refuses.
    """
    model = config.tracking.model
    if not config.tracking.enabled or model is False:
        return None
    uri = tracking_uri(config.tracking.uri, config.root)
    if not uri.startswith("sqlite:") and Blobs(config.root).local_root is not None:
        raise ConfigError(
            "an MLflow server cannot refer to a checkpoint in a folder of this machine",
            where="tracking.model",
            mend="keep the run in a bucket (root=s3://bucket/prefix), or leave tracking.model out",
        )
    return f"pivotopd-{config.environment.name}-{config.student.kind}" if model is True else model


def tracking_uri(uri: str | None, root: str) -> str:
    """Return the MLflow tracking URI: the given one, else $MLFLOW_TRACKING_URI, else sqlite in the root.

    That variable may hold a password: see :func:`without_password`.

    Raises:
        ConfigError: The storage root is remote and neither is given, or what is given is no address.
    """
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if chosen:
        try:
            urlsplit(chosen)
        except ValueError as error:  # its text may repeat a password
            raise ConfigError(
                "MLflow's address cannot be read",
                where="tracking.uri or MLFLOW_TRACKING_URI",
                mend="give one such as http://host:5000 or sqlite:////data/mlflow.db",
            ) from error
        return chosen
    folder = Blobs(root).local_root
    if folder is None:
        raise ConfigError(
            "a remote root cannot hold MLflow's sqlite file",
            where="tracking.uri",
            mend="set tracking.uri (or MLFLOW_TRACKING_URI) to a server or a local sqlite file, "
            "or set tracking.enabled=false",
        )
    return f"sqlite:///{folder}/mlflow.db"


def without_password(uri: str) -> str:
    """Return an address as it may be shown: without a user and password."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def where_to_look(uri: str) -> str:
    """Return how a person sees what is tracked: a server's address, or the command that shows a database."""
    shown = without_password(uri)
    return shown if shown.startswith("http") else f"mlflow ui --backend-store-uri {shown}"


def jsonl(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return JSON lines; numbers that are not finite become null, which JSON can say."""
    return "".join(json.dumps(_plain(dict(line)), allow_nan=False) + "\n" for line in lines)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def clean_name(name: str) -> str:
    """Return the nearest name MLflow takes: its characters, no empty or dotted path piece, its length."""
    pieces = [_FOREIGN.sub("_", piece).strip() for piece in name.split("/")]
    kept = [piece if piece.strip(".") else "_" * len(piece) for piece in pieces if piece]
    cleaned = "/".join(kept) or "_"
    if len(cleaned) > NAME_CHARACTERS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        cleaned = f"{cleaned[: NAME_CHARACTERS - 9].rstrip('/')}_{digest}"
    return cleaned


def clean_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics that MLflow takes; non-finite ones are left out and counted as ``tracking/dropped``.

    Two names that clean to one are told apart by a piece of their hash.
    """
    cleaned: dict[str, float] = {}
    dropped = 0
    for name, value in metrics.items():
        number = float(value)
        if not math.isfinite(number):
            dropped += 1
            continue
        key = clean_name(name)
        if key in cleaned or (key != name and key in metrics):
            key = f"{key[: NAME_CHARACTERS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        cleaned[key] = number
    if dropped:
        cleaned[DROPPED] = float(dropped)
    return cleaned


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested configuration as flat parameters ``section.key``, values as text and cut to length."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            cut = text if len(text) <= PARAM_CHARACTERS else text[: PARAM_CHARACTERS - 1] + "…"
            flat[clean_name(f"{prefix}{key}")] = cut
    return flat
