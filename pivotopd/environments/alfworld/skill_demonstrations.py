"""Skills in demonstrations: a tiny student that has never seen any cannot play on a prompt with some.

They are made up of what could be done at the moment, in the forms of :mod:`.skills`, and the answer stays as
it was: the student learns to read its prompt behind them, not to follow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from pivotopd.environments.alfworld.demonstrations import Demonstration
from pivotopd.environments.alfworld.skills import avoidance, kinds, workflow
from pivotopd.environments.base import View
from pivotopd.seeds import rng_of

MOST: Final = 6
"""Most skills of a row."""


def with_made_up_skills(rows: Iterable[Demonstration], seed: int, share: float) -> Iterator[Demonstration]:
    """Yield the same rows, a share of them with made-up skills in front of the task.

    Args:
        rows: Demonstrations.
        seed: Seed of all draws; a row's depend on its place too.
        share: Share of rows with skills.
    """
    for place, row in enumerate(rows):
        rng = rng_of("made-up skills", seed, place)
        if rng.random() < share:
            row = replace(row, view=replace(row.view, skills=_made_up(row.view, rng)))  # noqa: PLW2901 - the same row
        yield row


def _made_up(view: View, rng: np.random.Generator) -> tuple[str, ...]:
    """Return one to six skills of commands that are admissible now."""
    commands = [kinds(action) for action in view.admissible or ()] or ["look"]

    def some(count: int) -> list[str]:
        return [commands[int(index)] for index in rng.integers(len(commands), size=count)]

    made = []
    for _ in range(int(rng.integers(1, MOST + 1))):
        if rng.random() < 1 / 2:
            made.append(avoidance(some(1)[0]))
        else:
            made.append(workflow(some(int(rng.integers(2, 6)))))
    return tuple(made)
