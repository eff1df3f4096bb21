"""Run a flow in this process: Prefect must be in reach first, and what fails is one of our errors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pivotopd.errors import ConfigError, StorageError
from pivotopd.stops import StopSignal, interrupt_held_back, stop_behind

_SERVER = "PREFECT_API_URL"
_HOME = "PREFECT_HOME"
_MEND_SERVER = (
    f"start it with `prefect server start`, or unset {_SERVER}: each command then has a server of its own"
)


def check_prefect_home() -> None:
    """Refuse a folder in which Prefect's own server cannot keep its database; it would be waited for in vain.

    To be called before Prefect is imported, which reads the folder.

    Raises:
        ConfigError: The folder cannot be written.
    """
    folder = Path(os.path.expanduser(os.environ.get(_HOME, "~/.prefect")))
    if os.environ.get(_SERVER) or os.path.exists(folder / "profiles.toml"):  # a profile may name a server
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"Prefect cannot keep its database here: {error.strerror or error}",
            where=str(folder),
            mend=f"set {_HOME} to a folder that can be written",
        ) from error


def run_flow(flow: Callable[..., Any], *arguments: Any) -> None:
    """Run a flow to its end.

    Args:
        flow: A Prefect flow; a Failed state of it holds the stage's error.
        *arguments: Its parameters.

    Raises:
        ConfigError: The Prefect server that is set cannot be reached.
        StorageError: It went out of reach while the flow ran.
        PivotError: The flow's own error.
        StopSignal: A scheduler asked to stop.
    """
    import httpx

    _reach_server()
    try:
        with _stops_as_ours():
            state = flow(*arguments, return_state=True)
            if state.is_failed() or state.is_crashed():
                raise state.result(raise_on_failure=False)
    except httpx.HTTPError as error:
        raise StorageError(
            f"Prefect's server went out of reach: {type(error).__name__} {error}".strip(),
            where=os.environ.get(_SERVER, "Prefect's own server"),
            mend="start the same command again: what is finished is kept",
        ) from error


@contextmanager
def _stops_as_ours() -> Iterator[None]:
    """Turn a request to stop that Prefect caught into ours; it may have stumbled over its own exception."""
    from prefect.exceptions import TerminationSignal

    try:
        yield
    except BaseException as error:
        asked = stop_behind(error)
        if not isinstance(asked, TerminationSignal):
            raise
        raise StopSignal(asked.signal) from error


def _reach_server() -> None:
    """Ask the server that is set, if one is; otherwise let Prefect start its own."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    if not address:
        with interrupt_held_back():  # else Ctrl-C ends the server too, and the flow waits for it in vain
            get_client(sync_client=True)
        return
    with get_client(sync_client=True) as client:
        failure = client.api_healthcheck()
    if failure is not None:
        raise ConfigError(
            f"Prefect's server cannot be reached: {str(failure) or type(failure).__name__}",
            where=f"{_SERVER}={address}",
            mend=_MEND_SERVER,
        ) from failure
