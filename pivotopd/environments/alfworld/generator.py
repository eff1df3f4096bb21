"""New games from a seed: rooms with the features of ALFWorld's own, in the same problem form.

Written without the engine: a game is a text, checked for solvability by the oracle. The same seed gives the
same bytes in any process. A game's content decides whether it can belong to ``train`` or to a held-out split,
so no held-out game is ever a training game, whatever the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pivotopd.environments.alfworld.draw import draw
from pivotopd.environments.alfworld.games import Game
from pivotopd.environments.alfworld.generator_options import PLAIN, GeneratorOptions
from pivotopd.environments.alfworld.goals import TASK_TYPES
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import parse_problem
from pivotopd.environments.alfworld.problem_text import problem, sentence
from pivotopd.environments.alfworld.rooms import ROOMS, Room
from pivotopd.errors import ConfigError, GameError
from pivotopd.seeds import rng_of, seed_of

__all__ = [
    "PLAIN",
    "PLAIN_TASK_TYPES",
    "TRAIN_SPLIT",
    "GeneratorOptions",
    "generate_game",
    "generate_games",
    "is_for_training",
]

TRAIN_SPLIT: Final = "train"
PLAIN_TASK_TYPES: Final = (
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
)
"""The task types of the tiny student's recipe."""

_ATTEMPTS: Final = 64
_NATURAL: Final[dict[str, tuple[Room, ...]]] = {
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "look_at_obj_in_light": ("bedroom", "livingroom"),
}


def generate_game(
    seed: int,
    task_type: str,
    room: Room,
    options: GeneratorOptions | None = None,
    *,
    split: str = TRAIN_SPLIT,
    game_id: str | None = None,
) -> Game:
    """Make one solvable game.

    Args:
        seed: Any integer.
        task_type: One of ALFWorld's six.
        room: The kind of room. A tool that it lacks is brought in, so every task fits every room.
        options: What the room looks like; all features by default.
        split: Name of the game's split. A content is for ``train`` or for held-out splits, never both.
        game_id: The game's id; by default made of split, seed, task type and room.

    Raises:
        ConfigError: The task type or room is unknown, or no object of the options suits the task.
        GameError: No attempt gave a solvable game.
    """
    if task_type not in TASK_TYPES or room not in ROOMS:
        raise ConfigError(
            f"There is no task {task_type!r} in a {room!r}.",
            where="task types",
            mend=f"use one of {', '.join(TASK_TYPES)} and one of {', '.join(ROOMS)}",
        )
    options = options or GeneratorOptions()
    name = game_id or f"generated/{split}/{seed}-{task_type}-{room}"
    for attempt in range(_ATTEMPTS):
        rng = rng_of("alfworld game", seed, task_type, room, split, attempt)
        layout = draw(rng, task_type, room, options)
        game = Game(
            id=name,
            split=split,
            task_type=task_type,
            pddl_problem=problem(layout),
            task_sentence=sentence(layout, int(rng.integers(2))),
            source=f"generator, seed {seed}, attempt {attempt}",
        )
        if is_for_training(game) == (split == TRAIN_SPLIT) and _plays(game):
            return game
    raise GameError(
        f"No solvable game came of {_ATTEMPTS} attempts.",
        where=f"{name}, seed {seed}",
        mend="use another seed, or options with more receptacles",
    )


def generate_games(
    seed: int,
    split: str,
    count: int,
    task_types: Sequence[str] = TASK_TYPES,
    options: GeneratorOptions | None = None,
) -> tuple[Game, ...]:
    """Make the games of a split, task types in turn, sorted by id.

    The first ``n`` games do not depend on ``count``.

    Args:
        seed: The run's seed for games.
        split: Name of the split; part of every game's seed.
        count: How many games.
        task_types: The task types, in the order in which they take turns.
        options: What the rooms look like.

    Raises:
        ConfigError: No task type, or a name that is none of the six.
        GameError: See :func:`generate_game`.
    """
    if not task_types or count < 0:
        raise ConfigError(
            f"{count} games of {len(task_types)} task types.",
            where="task types",
            mend="give at least one type",
        )
    options = options or GeneratorOptions()
    games = []
    for index in range(count):
        task_type = task_types[index % len(task_types)]
        own = seed_of("alfworld games", seed, split, index)
        rooms = [room for room in options.rooms if room in _NATURAL.get(task_type, options.rooms)]
        rooms = rooms or list(options.rooms)
        room = rooms[int(rng_of("alfworld room", own).integers(len(rooms)))]
        name = f"generated/{split}/{index:06d}-{task_type}"
        games.append(generate_game(own, task_type, room, options, split=split, game_id=name))
    return tuple(games)


def is_for_training(game: Game) -> bool:
    """Tell on which side of the line between ``train`` and all other splits a game's content falls."""
    return int(game.content_hash[-1], 16) % 2 == 0


def _plays(game: Game) -> bool:
    """Tell whether a game can be won and is not won at its start."""
    world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
    return bool(Oracle(world).distance(world.start))
