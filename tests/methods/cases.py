"""Two episodes of three turns, by hand: ``a`` wins with return 10, ``b`` fails; so A_RL is 5 and -5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pivotopd.methods.base import Row

PLAIN = ([-1.0, -2.0], [-1.0], [-3.0], [-1.0], [-1.0, -1.0], [-2.0])
DELTA = ([0.5, -0.5], [0.0], [0.1], [-1.0], [-0.1, 0.1], [1.0])
"""lT - lO of the rows a0, a1, a2, b0, b1, b2."""
OUTCOME = (5.0, 5.0, 5.0, -5.0, -5.0, -5.0)


def nats(values: list[float]) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def row(episode: str, turn: int, plain: list[float], value: float = 0.0, **changes: Any) -> Row:
    made = Row(
        episode, "g", "rollout", value, 0.0, nats(plain), None, None, np.ones(len(plain), np.bool_), turn=turn
    )
    return replace(made, **changes)


def example(signal: str | None = None) -> list[Row]:
    """The six rows; with the name of a signal, that signal is lO + DELTA."""
    rows = []
    for index, (plain, delta) in enumerate(zip(PLAIN, DELTA, strict=True)):
        won = index < 3
        scored = {} if signal is None else {signal: nats([x + y for x, y in zip(plain, delta, strict=True)])}
        rows.append(row("a" if won else "b", index % 3, plain, 10.0 * won, won=won, **scored))
    return rows
