"""The stock engine with a native twin beside it, which sees the state that the stock engine cannot store.

The student plays the stock engine. Every answer is compared with the native engine's, so a run on the
reference engine is a contract test too; the twin's state is what the oracle reads.
"""

from __future__ import annotations

from typing import Any

from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.stock import StockEnv
from pivotopd.environments.base import StepResult, Task
from pivotopd.errors import EnvironmentFault, ReplayDivergence


class MirroredStockEnv:
    """Plays the stock engine; implements :class:`pivotopd.environments.base.Env`.

    Args:
        wording: Style of commands and feedback.
        memoise: As in :class:`pivotopd.environments.alfworld.stock.StockEnv`.
    """

    def __init__(self, wording: WordingStyle, *, memoise: bool = True) -> None:
        self._stock, self._twin = StockEnv(wording, memoise=memoise), NativeEnv(wording)
        self.spec = self._stock.spec
        self._task: Task | None = None

    def reset(self, task: Task, seed: int) -> StepResult:
        """Start a game in both engines."""
        self._task = task
        return self._agreed(self._stock.reset(task, seed), self._twin.reset(task, seed))

    def step(self, action: str) -> StepResult:
        """Play a command in both engines.

        Raises:
            ReplayDivergence: The engines answer differently.
        """
        return self._agreed(self._stock.step(action), self._twin.step(action))

    def snapshot(self) -> Any:
        """Return both engines' snapshots."""
        return self._stock.snapshot(), self._twin.snapshot()

    def restore(self, snapshot: Any) -> StepResult:
        """Replay the stock engine up to a snapshot, and restore the twin's."""
        stock, twin = snapshot
        return self._agreed(self._stock.restore(stock), self._twin.restore(twin))

    def dump(self) -> bytes:
        """Return the twin's state, for the oracle."""
        return self._twin.dump()

    def load(self, task: Task, state: bytes) -> StepResult:
        """Refuse: the stock engine reaches a state only by replay."""
        del state
        raise EnvironmentFault(
            "the stock engine cannot load a stored state", where=task.id, mend="replay the recorded actions"
        )

    def state_hash(self) -> str:
        """Return the twin's hash, which a native replay gives too."""
        return self._twin.state_hash()

    def close(self) -> None:
        """Free both engines."""
        self._stock.close()
        self._twin.close()

    def _agreed(self, stock: StepResult, native: StepResult) -> StepResult:
        if stock != native:
            raise ReplayDivergence(
                f"the engines differ: stock {stock.observation[:80]!r}, native {native.observation[:80]!r}",
                where=self._task.id if self._task else "alfworld",
                mend="please report this game and its actions",
            )
        return stock
