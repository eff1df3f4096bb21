"""ALFWorld's face: its tasks by split, its engines, its wording and its oracle."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final

from pivotopd.config import EnvironmentSection
from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.alfworld.games import Game, load_games, task_of
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.environments.alfworld.generator_options import PLAIN
from pivotopd.environments.alfworld.informed import InformedOracle
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import World, parse_problem
from pivotopd.environments.alfworld.skills import distil
from pivotopd.environments.alfworld.snapshots import from_bytes
from pivotopd.environments.alfworld.teacher_prompts import AlfworldTeacherWording
from pivotopd.environments.alfworld.wording import make_wording
from pivotopd.environments.base import Env, EnvSpec, PlayedEpisode, Task, TeacherWording, View
from pivotopd.errors import ConfigError, GameError

INVALID_PENALTY: Final = 0.1
"""Taken off the score of a turn with an invalid reply, as verl-agent does on ALFWorld."""

HELD_OUT: Final = "valid"
"""Split that is held out of train where the games have none of this name."""

ORACLES_KEPT: Final = 512


class AlfworldEnvironment:
    """ALFWorld under one configuration; implements :class:`pivotopd.environments.base.Environment`.

    Args:
        section: The environment section.
    """

    invalid_penalty = INVALID_PENALTY

    def __init__(self, section: EnvironmentSection) -> None:
        self._section = section
        self.wording = make_wording(section.prompt)
        self.teacher_wording: TeacherWording = AlfworldTeacherWording(section.wording)
        self.spec: EnvSpec = NativeEnv(section.wording).spec
        if section.engine == "stock":
            from pivotopd.environments.alfworld.stock import StockEnv  # noqa: PLC0415 - an extra

            self.spec = StockEnv(section.wording).spec
        self._oracles = lru_cache(maxsize=ORACLES_KEPT)(self._make_oracle)
        self._splits: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return a split's games, sorted by id.

        Raises:
            GameError: There are none, or a file is damaged.
            ConfigError: Generated games have no split of this name.
        """
        if split not in self._splits:
            games = self._generated(split) if self._section.games is None else self._read(split)
            self._splits[split] = tuple(task_of(game) for game in sorted(games, key=lambda game: game.id))
        return self._splits[split]

    def open(self) -> Env:
        """Return a fresh instance of the configured engine."""
        if self._section.engine == "stock":
            from pivotopd.environments.alfworld.mirrored import MirroredStockEnv  # noqa: PLC0415 - an extra

            return MirroredStockEnv(self._section.wording)
        return NativeEnv(self._section.wording)

    def instruction(self, task: Task) -> str:
        """Return the task sentence."""
        return _game(task).task_sentence

    def data_fingerprint(self, split: str) -> str:
        """Return a hash over a split's ids and contents; engine and version are part of it."""
        digest = hashlib.sha256(f"{self.spec.name} {self.spec.version}".encode())
        for task in self.tasks(split):
            digest.update(f"{task.id} {task.content_hash}\n".encode())
        return digest.hexdigest()

    def distil(self, episode: PlayedEpisode) -> str | None:
        """Return a short skill by fixed rules; see :func:`pivotopd.environments.alfworld.skills.distil`."""
        return distil(episode)

    def oracle(self, task: Task) -> AlfworldOracle:
        """Return the oracle of a game; games that were asked for lately are kept."""
        return self._oracles(task)

    def _make_oracle(self, task: Task) -> AlfworldOracle:
        game = _game(task)
        world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        return AlfworldOracle(world, task.id, self._section.wording)

    def _generated(self, split: str) -> Sequence[Game]:
        generated = self._section.generated
        counts = {"train": generated.train, "valid": generated.valid, "test": generated.test}
        if split not in counts:
            raise ConfigError(
                f"generated games have no split {split!r}",
                where="environment",
                mend=f"use one of {', '.join(counts)}, or give environment.games",
            )
        return generate_games(generated.seed, split, counts[split], generated.task_types, PLAIN)

    def _read(self, split: str) -> Sequence[Game]:
        if split not in (HELD_OUT, self._section.train_split):
            return load_games(self._section.games, splits=[split])
        splits: dict[str, list[Game]] = {}
        for game in self._all_games:
            splits.setdefault(game.split, []).append(game)
        if HELD_OUT in splits:
            chosen = splits.get(split, [])
        else:
            chosen = self._without_or_only_held_out(splits.get(self._section.train_split, []), split)
        if not chosen:
            raise GameError(
                f"there are no games of split {split!r}, only of {', '.join(sorted(splits))}",
                where=str(self._section.games),
                mend="set environment.train_split or environment.valid_split to one of these",
            )
        return chosen

    @cached_property
    def _all_games(self) -> Sequence[Game]:
        return load_games(self._section.games)

    def _without_or_only_held_out(self, train: Sequence[Game], split: str) -> list[Game]:
        """Hold contents out of train, so that file order does not matter and no content is on both sides.

        At most a tenth of the contents, but at least one as long as another one stays in train.
        """
        contents = sorted({game.content_hash for game in train})
        count = min(self._section.holdout, max(1, len(contents) // 10), max(0, len(contents) - 1))
        held = set(contents[:count])
        return [game for game in train if (game.content_hash in held) == (split == HELD_OUT)]


class AlfworldOracle:
    """The oracle of one game on stored states; implements :class:`pivotopd.environments.base.TaskOracle`.

    Args:
        world: The game.
        task_id: Named in errors.
        wording: Style of the actions it names.
    """

    def __init__(self, world: World, task_id: str, wording: WordingStyle) -> None:
        self._exact, self._informed = Oracle(world), InformedOracle(world)
        self._task_id, self._wording = task_id, wording

    def distance(self, state: bytes) -> int | None:
        """Return the least number of turns to the goal, or None when it cannot be reached."""
        return self._exact.distance(from_bytes(state, self._task_id).state)

    def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
        """Return the best actions: those done here first, then the next of a fixed sweep, then the others."""
        now = from_bytes(state, self._task_id).state
        if view is None:
            return _acting_first(self._exact.optimal_actions(now, self._wording), None)
        knowledge = self._informed.read([*(seen for seen, _ in view.history), view.observation])
        unseen = self._informed.next_unseen(now, knowledge)
        sweep = self._informed.reveal(now, unseen) if unseen is not None else None
        return _acting_first(self._informed.best_actions(now, knowledge, self._wording), sweep)


def _acting_first(actions: Sequence[str], sweep: str | None) -> tuple[str, ...]:
    """Order equally good actions: to act here before to walk on, the next place of a sweep before others."""
    return tuple(sorted(actions, key=lambda action: (action.startswith("go to "), action != sweep, action)))


def _game(task: Task) -> Game:
    if not isinstance(task.payload, Game):
        raise GameError(f"task {task.id} carries no ALFWorld game", where=task.environment)
    return task.payload
