"""The stock ALFWorld engine behind the environment protocol: the reference that the native engine must equal.

It needs the extra ``pivotopd[alfworld]`` (alfworld, textworld and fast-downward) and is three orders slower
than the native engine. A game is rebuilt from its problem and its sentence with the packaged domain and
grammar, because the engine evaluates its grammar as code. It is not thread safe: one thread of a process may
use it at a time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.memo import memoised, remember_commands
from pivotopd.environments.alfworld.native import WIN_REWARD
from pivotopd.environments.alfworld.problem import check_sentence
from pivotopd.environments.base import EnvSpec, StepResult, Task
from pivotopd.errors import ConfigError, EnvironmentFault, GameError, ReplayDivergence

__all__ = ["StockEnv", "StockSnapshot", "packages", "play_stock"]

_PLACEHOLDER: Final = "UNKNOWN GOAL."
_MEND_INSTALL: Final = (
    "run `bash infra/stock_engine.sh`, which installs pivotopd[alfworld] and keeps the built wheel"
)


class _Packages(NamedTuple):
    """What is used of the optional packages."""

    textworld: Any
    pddl_env: Any
    demangler: Any
    domain: str
    grammar: str
    version: str


@lru_cache(maxsize=1)
def packages() -> _Packages:
    """Import the stock packages; the process's environment variables stay as they were.

    Raises:
        ConfigError: They are not installed, or of another generation.
    """
    data = os.environ.get("ALFWORLD_DATA")
    try:
        import fast_downward  # noqa: F401, PLC0415 - optional extra; PddlEnv hides its absence until later
        import textworld  # noqa: PLC0415 - optional extra
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # noqa: PLC0415 - optional extra
        from textworld.envs.pddl import PddlEnv  # noqa: PLC0415 - optional extra
    except ImportError as error:
        raise ConfigError(
            "The stock ALFWorld engine is not installed.", where=str(error), mend=_MEND_INSTALL
        ) from error
    finally:
        if data is None:  # alfworld sets it to its own download folder
            os.environ.pop("ALFWORLD_DATA", None)
    logic = importlib.resources.files("alfworld") / "data"
    domain, grammar = (logic / "alfred.pddl").read_text(), (logic / "alfred.twl2").read_text()
    version = importlib.metadata.version("alfworld")
    if grammar.count(_PLACEHOLDER) != 1 or '"move {o} to {r}"' not in grammar:
        raise ConfigError(f"alfworld {version} has another grammar.", where="alfworld", mend=_MEND_INSTALL)
    version += f"-textworld-{importlib.metadata.version('textworld')}"
    return _Packages(textworld, PddlEnv, AlfredDemangler, domain, grammar, version)


@dataclass(frozen=True, slots=True)
class StockSnapshot:
    """An episode as what it takes to play it again.

    Attributes:
        task_id: The game.
        content_hash: Hash of the game's content.
        actions: The actions played.
        digests: Hash of what each turn answered, the reset first.
    """

    task_id: str
    content_hash: str
    actions: tuple[str, ...]
    digests: tuple[str, ...]


class StockEnv:
    """One episode at a time of any game on the stock engine; implements ``Env`` with ``fork="replay"``.

    Use one object for many games: what a deleted one held is never given back to the system.

    Args:
        wording: Only ``move``, the wording of the packaged alfworld.
        memoise: Reuse parsed templates and translations: the same text in a fifth of the time. Off, the
            packages run as they are.

    Raises:
        ConfigError: The extra is not installed, or another wording is asked for.
    """

    def __init__(self, wording: WordingStyle = "move", *, memoise: bool = True) -> None:
        if wording != "move":
            raise ConfigError(
                f"The stock engine cannot speak the wording {wording!r}.",
                where="environment.wording",
                mend="use the native engine for it, or the wording 'move'",
            )
        self._packages = packages()
        self.memoise = memoise
        self.spec = EnvSpec("alfworld", f"stock-{self._packages.version}/move", "exact", fork="replay")
        self._engine = self._packages.demangler(self._packages.pddl_env(self._packages.textworld.EnvInfos()))
        self._loaded: str | None = None
        self._task: Task | None = None
        self._actions: list[str] = []
        self._digests: list[str] = []
        self._answer: StepResult

    def reset(self, task: Task, seed: int = 0) -> StepResult:  # noqa: ARG002 - the game draws nothing
        """Start a game. The engine draws nothing, so the seed changes nothing.

        Raises:
            GameError: The engine cannot load the game.
            EnvironmentFault: The task's payload is no game.
        """
        if not isinstance(task.payload, Game):
            raise EnvironmentFault("The payload of the task is no ALFWorld game.", where=task.id)
        self._task = None
        with self._working():
            if self._loaded != task.content_hash:
                self._load(task.payload)
                self._loaded = task.content_hash
            state = self._engine.reset()
        self._task, self._actions, self._digests = task, [], []
        return self._answered(state, valid=True)

    def step(self, action: str) -> StepResult:
        """Play a command, sent verbatim.

        Raises:
            EnvironmentFault: There is no episode, or it is won.
        """
        task = self._running()
        if self._answer.done:
            raise EnvironmentFault("The episode is over; no action can follow.", where=task.id)
        valid = action.strip() in (self._answer.admissible or ())
        with self._working():
            state, _, _ = self._engine.step(action)
        self._actions.append(action)
        return self._answered(state, valid=valid)

    def snapshot(self) -> StockSnapshot:
        """Return the episode as the actions that lead to it.

        Raises:
            EnvironmentFault: There is no episode.
        """
        task = self._running()
        return StockSnapshot(task.id, task.content_hash, tuple(self._actions), tuple(self._digests))

    def restore(self, snapshot: StockSnapshot) -> StepResult:
        """Play the task that was last reset up to a snapshot.

        Raises:
            EnvironmentFault: There is no episode, or the snapshot is of another game.
            ReplayDivergence: A turn answered otherwise than when the snapshot was taken.
        """
        task = self._running()
        if (snapshot.task_id, snapshot.content_hash) != (task.id, task.content_hash):
            raise EnvironmentFault(
                f"The snapshot is of {snapshot.task_id}.",
                where=task.id,
                mend="reset the environment to the snapshot's task first",
            )
        answer = self.reset(task)
        for turn, digest in enumerate(snapshot.digests):
            if turn:
                answer = self.step(snapshot.actions[turn - 1])
            if self._digests[turn] != digest:
                raise ReplayDivergence(
                    f"Turn {turn} of the replay answers otherwise than when it was recorded.",
                    where=f"{task.id}: {answer.observation!r}",
                    mend="compare the versions of the stock packages",
                )
        return answer

    def dump(self) -> None:
        """Return None: nothing of this engine can be stored; ``mirrored`` shows the oracle a state."""

    def load(self, task: Task, state: bytes) -> StepResult:
        """Refuse: this engine reaches a state only by replay.

        Raises:
            EnvironmentFault: Always.
        """
        del state
        raise EnvironmentFault(
            "The stock engine cannot load a stored state.", where=task.id, mend="replay the recorded actions"
        )

    def state_hash(self) -> str:
        """Return a hash of all facts that the engine knows, negated ones included."""
        self._running()
        facts = sorted(map(str, self._engine.unwrapped._pddl_state.facts))
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def plan(self) -> list[str]:
        """Return the stock planner's shortest plan from here; empty where it finds none.

        The search has no limit of time or memory; ``stock_planner`` runs it under one.

        Raises:
            EnvironmentFault: There is no episode, or the engine was loaded without its planner.
        """
        task = self._running()
        if self.memoise:
            raise EnvironmentFault(
                "A memoised stock engine has no planner.", where=task.id, mend="StockEnv(memoise=False)"
            )
        with self._working():
            engine = self._engine.unwrapped
            return list(engine._pddl_state.replan(engine._entity_infos))

    def close(self) -> None:
        """Forget the episode and the loaded game."""
        self._task = self._loaded = None

    def _load(self, game: Game) -> None:
        check_sentence(game.task_sentence, game.id)
        sentence = json.dumps(game.task_sentence, ensure_ascii=False)[1:-1]
        rebuilt = {
            "pddl_domain": self._packages.domain,
            "grammar": self._packages.grammar.replace(_PLACEHOLDER, sentence),
            "pddl_problem": game.pddl_problem,
        }
        self._loaded = None
        try:
            self._engine.load(rebuilt)
        except (Exception, SystemExit) as error:  # the translator raises anything, and exits on bad syntax
            raise GameError(
                f"The stock engine cannot load the game: {type(error).__name__}: {error}",
                where=game.id,
                mend="check that the problem is of ALFWorld's domain and its goal can be reached",
            ) from error
        if self.memoise:
            remember_commands(self._engine.unwrapped._logic)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Give the engine its way with ``sys.argv`` and ``sys.stdout``, and put both back."""
        kept = sys.argv, sys.stdout
        fast: AbstractContextManager[None] = memoised() if self.memoise else nullcontext()
        try:
            with fast:
                yield
        finally:
            sys.argv, sys.stdout = kept

    def _answered(self, state: Any, *, valid: bool) -> StepResult:
        won = bool(state["won"])
        done = won and bool(self._actions)  # the engine tells the end only after an action
        text, admissible = str(state.feedback), tuple(state["admissible_commands"])
        self._answer = StepResult(text, admissible, WIN_REWARD * done, float(won), won, done, valid)
        self._digests.append(hashlib.sha256(repr(self._answer).encode()).hexdigest()[:16])
        return self._answer

    def _running(self) -> Task:
        if self._task is None:
            raise EnvironmentFault("No episode has been started.", where="alfworld", mend="call reset first")
        return self._task


@lru_cache(maxsize=2)
def _process_env(memoise: bool) -> StockEnv:
    """Return this process's one engine."""
    return StockEnv(memoise=memoise)


def play_stock(game: Game, actions: Sequence[str], *, memoise: bool = True) -> list[StepResult]:
    """Play actions on this process's engine; fit to be sent to a worker process.

    Args:
        game: The game.
        actions: What to play.
        memoise: See :class:`StockEnv`.

    Returns:
        The answer to the reset and to each action; it ends early with the turn that wins.

    Raises:
        ConfigError: The extra is not installed.
        GameError: The engine cannot load the game.
    """
    env = _process_env(memoise)
    answers = [env.reset(task_of(game))]
    for action in actions:
        if answers[-1].done:
            break
        answers.append(env.step(action))
    return answers
