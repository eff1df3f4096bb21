"""Quiet, offline-proof defaults for Prefect, set before it is imported; the user's own settings win."""

from __future__ import annotations

import logging
import os

_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # A first start on a slow disk migrates a new database and takes longer than Prefect's 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Bars and lines of our own tell the progress; a run's log is in its artifacts and in MLflow.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_WORKERS = (
    "EventsWorker",
    "APILogWorker",
    "ConcurrencySlotAcquisitionService",
    "ConcurrencySlotAcquisitionWithLeaseService",
)
"""Prefect's threads, whose loggers lie outside of its own: what they say when the process ends is no news."""


def set_prefect_defaults() -> None:
    """Set the defaults that the environment leaves open."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    level = logging.getLevelNamesMapping().get(os.environ["PREFECT_LOGGING_LEVEL"].upper(), logging.CRITICAL)
    for worker in _WORKERS:
        logging.getLogger(worker).setLevel(level)
