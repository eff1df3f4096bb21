"""The stock engine, where it is installed, for the command line's tests too."""

from tests.environments.alfworld.conftest import stock_engine

__all__ = ["stock_engine"]
