"""A Prefect that is not in reach is one error before anything is done, and one while a flow runs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed

from flows.in_process import check_prefect_home, run_flow
from pivotopd.errors import ConfigError, StorageError
from pivotopd.stops import StopSignal


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/api", "foo"])
def test_a_server_out_of_reach_is_refused_before_the_flow(address: str) -> None:
    ran: list[object] = []
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(ConfigError, match="cannot be reached") as caught,
    ):
        run_flow(ran.append, 1)
    assert caught.value.where == f"PREFECT_API_URL={address}"
    assert not ran


def test_a_server_that_is_lost_while_the_flow_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def flow(return_state: bool) -> Any:
        assert return_state
        raise httpx.ConnectError("gone")

    with (
        temporary_settings({PREFECT_API_URL: None}),
        pytest.raises(StorageError, match="out of reach") as caught,
    ):
        run_flow(flow)
    assert "same command again" in str(caught.value.mend)


@pytest.mark.parametrize("in_a_state", [True, False])
def test_a_request_to_stop_that_prefect_stumbled_over_is_still_one(in_a_state: bool) -> None:
    def stumbling() -> None:
        try:
            raise TerminationSignal(signal=signal.SIGTERM)
        except TerminationSignal:
            raise ValueError("Task run is not set")  # noqa: B904 - as Prefect's own engine does

    def flow(return_state: bool) -> Any:
        assert return_state
        if not in_a_state:
            stumbling()
        try:
            stumbling()
        except ValueError as error:
            return Crashed(data=error)

    with temporary_settings({PREFECT_API_URL: None}), pytest.raises(StopSignal, match="SIGTERM"):
        run_flow(flow)


def test_a_defect_stays_a_defect() -> None:
    def flow(return_state: bool) -> Any:
        assert return_state
        raise ValueError("a defect")

    with temporary_settings({PREFECT_API_URL: None}), pytest.raises(ValueError, match="a defect"):
        run_flow(flow)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_prefect_home_that_cannot_be_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / name))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(ConfigError, match="cannot keep its database") as caught:
        check_prefect_home()
    assert caught.value.where == str(tmp_path / name)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    check_prefect_home()  # a server elsewhere keeps its own


def test_a_prefect_home_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "a" / "b"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    check_prefect_home()
    assert list((tmp_path / "a" / "b").iterdir()) == []
