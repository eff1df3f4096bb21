"""The stock engine, where it is installed, for the command line's tests too; and nobody goes on listening."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.environments.alfworld.conftest import stock_engine

__all__ = ["stock_engine"]


@pytest.fixture(autouse=True)
def _nobody_listens_afterwards() -> Iterator[None]:
    """What ran in this process said who watches its flow: that must not watch the next test's."""
    yield
    train = sys.modules.get("flows.train")
    if train is not None:
        train.listen(train.Listener())


@pytest.fixture(scope="module")
def prefect_here() -> Iterator[None]:
    """A Prefect server with a home of its own for flows that run in the tests' process."""
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield
