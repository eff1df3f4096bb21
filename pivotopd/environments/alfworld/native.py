"""The native ALFWorld environment: pure Python, value snapshots, the stock engine's text to the byte."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from pivotopd.environments.alfworld.engine import Engine, Outcome, WordingStyle, engine_of
from pivotopd.environments.alfworld.games import Game
from pivotopd.environments.alfworld.problem import State, World, goal_holds
from pivotopd.environments.alfworld.snapshots import Snapshot, from_bytes, to_bytes
from pivotopd.environments.base import EnvSpec, StepResult, Task
from pivotopd.errors import EnvironmentFault

__all__ = ["NativeEnv", "Snapshot", "admissible", "apply", "reset_text", "state_hash"]

VERSION: Final = "native-1"
"""Changes whenever some text or rule of the engine does."""

WIN_REWARD: Final = 10.0
"""Reward of the turn that wins (as verl-agent)."""


@lru_cache(maxsize=64)
def _engine(world: World, wording: WordingStyle) -> Engine:
    return Engine(world, wording)


def admissible(world: World, state: State, wording: WordingStyle = "move") -> tuple[str, ...]:
    """Return the admissible commands, sorted."""
    return _engine(world, wording).admissible(state)


def apply(world: World, state: State, command: str, wording: WordingStyle = "move") -> Outcome:
    """Play one command."""
    return _engine(world, wording).apply(state, command)


def reset_text(world: World) -> str:
    """Return the first observation."""
    return _engine(world, "move").reset_text()


def state_hash(state: State) -> str:
    """Hash a state, ``removed`` included: 16 hex digits, the same in every process.

    Two states with one hash give the same text for the same commands in the same game.
    """
    digest = hashlib.sha256()
    for name, value in zip(State._fields, state, strict=True):
        if isinstance(value, frozenset):
            parts = sorted(" ".join(item) if isinstance(item, tuple) else item for item in value)
            text = "\n".join(parts)
        else:
            text = "" if value is None else value
        digest.update(f"{name}:{text}\n\n".encode())
    return digest.hexdigest()[:16]


class NativeEnv:
    """One episode at a time of any game; implements :class:`pivotopd.environments.base.Env`.

    A step costs some ten microseconds, its admissible list and goal test included; a snapshot is a value that
    shares everything with the episode.

    Args:
        wording: Style of commands and feedback.
    """

    def __init__(self, wording: WordingStyle = "move") -> None:
        self.wording = wording
        self.spec = EnvSpec("alfworld", f"{VERSION}/{wording}", determinism="exact", fork="value")
        self._playing: tuple[Task, Engine] | None = None
        self._turns = 0
        self._state: State
        self._observation = ""
        self._valid = True
        self._answer: StepResult

    def reset(self, task: Task, seed: int = 0) -> StepResult:  # noqa: ARG002 - the game draws nothing
        """Start a game. The engine draws nothing, so the seed changes nothing.

        Raises:
            GameError: The game cannot be used.
            EnvironmentFault: The task's payload is no game.
        """
        engine = self._load(task)
        return self._enter(engine, engine.world.start, 0, engine.reset_text(), valid=True)

    def step(self, action: str) -> StepResult:
        """Play a command, sent verbatim.

        Raises:
            EnvironmentFault: There is no episode, or it is won.
        """
        task, engine = self._running()
        if self._answer.done:
            raise EnvironmentFault(
                "The episode is over; no action can follow.",
                where=task.id,
                mend="reset the environment or restore a snapshot",
            )
        state, feedback, valid = engine.apply(self._state, action)
        if state is self._state and self._turns:  # most useless actions: nothing to work out again
            self._turns, self._observation, self._valid = self._turns + 1, feedback, valid
            before = self._answer
            self._answer = StepResult(feedback, before.admissible, 0.0, 0.0, False, False, valid)
            return self._answer
        return self._enter(engine, state, self._turns + 1, feedback, valid=valid)

    def snapshot(self) -> Snapshot:
        """Return the episode as a value.

        Raises:
            EnvironmentFault: There is no episode.
        """
        task, _ = self._running()
        return Snapshot(
            task.id, task.content_hash, self.wording, self._state, self._turns, self._observation, self._valid
        )

    def restore(self, snapshot: Snapshot) -> StepResult:
        """Continue from a snapshot of the task that was last reset, in this process or another.

        Raises:
            EnvironmentFault: There is no episode, or the snapshot is of another game or wording.
        """
        task, engine = self._running()
        ours = (task.id, task.content_hash, self.wording)
        if (snapshot.task_id, snapshot.content_hash, snapshot.wording) != ours:
            raise EnvironmentFault(
                f"The snapshot is of {snapshot.task_id} ({snapshot.wording}), or of another version of it.",
                where=task.id,
                mend="reset the environment to the snapshot's task first",
            )
        return self._enter(engine, snapshot.state, snapshot.turns, snapshot.observation, valid=snapshot.valid)

    def dump(self) -> bytes:
        """Return the episode as bytes that can be stored and read by any process.

        Raises:
            EnvironmentFault: There is no episode.
        """
        return to_bytes(self.snapshot())

    def load(self, task: Task, state: bytes) -> StepResult:
        """Continue a game from dumped bytes.

        Raises:
            EnvironmentFault: The bytes are no episode of this game and wording.
        """
        self._load(task)
        return self.restore(from_bytes(state, task.id))

    def state_hash(self) -> str:
        """Return a hash of everything that decides what follows in this game and wording.

        Raises:
            EnvironmentFault: There is no episode.
        """
        self._running()
        return state_hash(self._state)

    def close(self) -> None:
        """Forget the episode."""
        self._playing = None

    def _load(self, task: Task) -> Engine:
        game = task.payload
        if not isinstance(game, Game):
            raise EnvironmentFault(
                f"The payload of the task is a {type(game).__name__}, not an ALFWorld game.",
                where=task.id,
                mend="make tasks with pivotopd.environments.alfworld.games.task_of",
            )
        engine = engine_of(game.pddl_problem, game.task_sentence, game.id, self.wording)
        self._playing = task, engine
        return engine

    def _enter(
        self, engine: Engine, state: State, turns: int, observation: str, *, valid: bool
    ) -> StepResult:
        won = goal_holds(engine.world, state)
        done = won and turns > 0  # a game that is won at reset ends with its first action
        self._state, self._turns, self._observation, self._valid = state, turns, observation, valid
        self._answer = StepResult(
            observation, engine.admissible(state), WIN_REWARD * done, float(won), won, done, valid
        )
        return self._answer

    def _running(self) -> tuple[Task, Engine]:
        if self._playing is None:
            raise EnvironmentFault("No episode has been started.", where="alfworld", mend="call reset first")
        return self._playing
