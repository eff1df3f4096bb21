"""The stock planner's optimum, asked in a process of its own that is ended when its time is up.

The planner is a blind uniform search: its plans are shortest, but some starts keep it busy for minutes or
until memory is full. It cross-checks the oracle and is used for nothing else.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.stock import StockEnv, packages
from pivotopd.errors import EnvironmentFault

__all__ = ["NO_PLAN", "stock_plan_length"]

NO_PLAN: Final = -1
"""The planner's answer for a state from which the goal cannot be reached."""

_START_LIMIT_S: Final = 120.0
"""How long the process may take to load the game and play the actions."""


def stock_plan_length(game: Game, actions: Sequence[str], timeout_s: float) -> int | None:
    """Return the stock planner's least number of actions to the goal, from the state after some actions.

    Args:
        game: The game.
        actions: Actions from the reset to the state.
        timeout_s: Seconds that the search may take; loading the game is not counted.

    Returns:
        The length, :data:`NO_PLAN` where there is no plan, or None where the time did not suffice.

    Raises:
        ConfigError: The extra is not installed.
        EnvironmentFault: The planner's process failed.
    """
    packages()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_plan, args=(theirs, game, tuple(actions)), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_LIMIT_S):
            raise EnvironmentFault("The stock planner did not start.", where=game.id)
        ours.recv()  # the game is loaded
        return int(ours.recv()) if ours.poll(timeout_s) else None
    except EOFError as error:
        raise EnvironmentFault(
            "The stock planner's process ended without an answer.",
            where=game.id,
            mend="see its traceback above; if there is none, the system ended it for lack of memory",
        ) from error
    finally:
        process.kill()
        process.join()
        ours.close()


def _plan(answer: Connection, game: Game, actions: tuple[str, ...]) -> None:
    env = StockEnv(memoise=False)
    last = env.reset(task_of(game))
    for action in actions:
        last = env.step(action)
    answer.send("loaded")
    length = 0 if last.won else len(env.plan()) or NO_PLAN
    answer.send(length)
