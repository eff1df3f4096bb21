"""Generated games: form, features, solvability, and that a seed is all that decides them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys

import pytest

from pivotopd.environments.alfworld.generator import (
    PLAIN,
    PLAIN_TASK_TYPES,
    GeneratorOptions,
    generate_game,
    generate_games,
    is_for_training,
)
from pivotopd.environments.alfworld.goals import TASK_TYPES
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import TOOL_TYPES, World, parse_problem
from pivotopd.environments.alfworld.problem_text import TEMPLATES
from pivotopd.environments.alfworld.rooms import FITS, LOOKALIKES, ROOMS
from pivotopd.errors import ConfigError

DIGEST = """
import hashlib
from pivotopd.environments.alfworld.generator import generate_games
games = generate_games(3, "train", 12)
print(hashlib.sha256("".join(g.id + g.pddl_problem + g.task_sentence for g in games).encode()).hexdigest())
"""


def worlds(
    count: int, options: GeneratorOptions | None = None, types: tuple[str, ...] = TASK_TYPES
) -> list[World]:
    games = generate_games(11, "train", count, types, options)
    return [parse_problem(game.pddl_problem, game.task_sentence, game.id) for game in games]


@pytest.mark.parametrize("room", list(ROOMS))
@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_task_in_every_room_can_be_won(task_type: str, room: str) -> None:
    for seed in range(4):
        game = generate_game(seed, task_type, room)  # type: ignore[arg-type]  # a room's name
        world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        distance = Oracle(world).distance(world.start)
        assert distance is not None
        assert 2 <= distance <= 14
        assert world.goal.task_type == task_type == game.task_type
        kinds = {
            "obj": world.goal.object_type,
            "recep": world.goal.receptacle_type,
            "lamp": world.goal.lamp_type,
        }
        words = {key: (kind or "").removesuffix("type") for key, kind in kinds.items()}
        assert game.task_sentence in {template.format(**words) for template in TEMPLATES[task_type]}
        assert world.start.location not in world.at
        assert world.start.held is None
        if world.goal.tool:
            assert TOOL_TYPES[world.goal.tool] in world.receptacle_type.values()


def test_the_types_that_the_domain_names_are_always_declared() -> None:
    for game in generate_games(0, "train", 6):
        for line in ("SinkBasinType - rtype", "MicrowaveType - rtype", "FridgeType - rtype",
                     "KnifeType - otype", "ButterKnifeType - otype"):  # fmt: skip
            assert f"        {line}\n" in game.pddl_problem
        assert ":metric" not in game.pddl_problem


def test_features_of_the_official_games_appear() -> None:
    made = worlds(120)
    goals = [w.goal_objects for w in made]
    several = colocated = fixed = loose_lamp = cool = dead = loose = stale = nested = 0
    for world in made:
        start, lying = world.start, [o for o, _ in world.start.inside]
        several += len(lying) > len(set(lying))
        colocated += any(len(here) > 1 for here in world.at.values())
        cabinets = {r for r, kind in world.receptacle_type.items() if kind in {"cabinettype", "drawertype"}}
        fixed += bool(cabinets - world.openable)
        loose_lamp += bool(world.toggleable - set(lying))
        cool += bool(start.cool)
        nowhere = {o for o in world.pickupable & set(lying)
                   if not any((kind, world.object_type[o]) in world.fits
                              for kind in world.receptacle_type.values())}  # fmt: skip
        dead += bool(nowhere)
        loose += bool(world.sliceable - set(lying))
        stale += any(not {world.location_of[r] for o, r in start.inside if o == thing} & {location}
                     for thing, location in start.object_at if thing in lying)  # fmt: skip
        nested += bool(world.inside_object)
    counts = (several, colocated, fixed, loose_lamp, cool, dead, loose, stale, nested)
    assert min(counts) >= 3, counts
    assert max(len(objects) for objects in goals) >= 3


def test_two_lookalikes_in_most_plain_games_apart_from_the_target() -> None:
    made = worlds(200, PLAIN, PLAIN_TASK_TYPES)
    twins = {f"{one}Type".lower(): f"{other}Type".lower() for one, other in LOOKALIKES.items()}
    numbers = [list(w.object_type.values()).count(twins[w.goal.object_type]) for w in made]
    assert set(numbers) == {0, 2}
    # Expected 170 of 200 games, standard deviation 5.
    assert 150 <= sum(numbers) / 2 <= 190
    places = [
        [r for o, r in w.start.inside if w.object_type[o] in {w.goal.object_type, twins[w.goal.object_type]}]
        for w, number in zip(made, numbers, strict=True)
        if number
    ]
    assert sum(len(set(where)) == 3 for where in places) > 0.8 * len(places)


def test_plain_games_are_small_and_without_oddities() -> None:
    for world in worlds(80, PLAIN, PLAIN_TASK_TYPES):
        lying = [o for o, _ in world.start.inside]
        assert 5 <= len(world.receptacles) <= 7
        assert len(world.goal_objects) == 1
        assert 4 <= len(world.object_type) <= 8
        assert len(lying) == len(set(lying)) == len(world.object_type)
        assert all(len(here) == 1 for here in world.at.values())
        assert not world.start.cool
        assert not world.toggleable
        for thing, kind in world.object_type.items():  # nothing blocks the hand for good
            assert thing in world.pickupable
            assert any((place, kind) in world.fits for place in world.receptacle_type.values())


def test_a_share_of_one_and_of_zero_is_kept() -> None:
    never = dataclasses.replace(PLAIN, lookalike=0.0)
    always = dataclasses.replace(PLAIN, colocated=1.0, cool_start=1.0)
    twins = {f"{one}Type".lower(): f"{other}Type".lower() for one, other in LOOKALIKES.items()}
    for world in worlds(30, never, PLAIN_TASK_TYPES):
        assert twins[world.goal.object_type] not in world.object_type.values()
    for world in worlds(30, always, PLAIN_TASK_TYPES):
        assert len(world.at) == 1


# ---------------------------------------------------------------------- seeds and splits


def test_a_seed_gives_the_same_bytes_in_any_process() -> None:
    games = generate_games(3, "train", 12)
    text = "".join(g.id + g.pddl_problem + g.task_sentence for g in games)
    expected = hashlib.sha256(text.encode()).hexdigest()
    for hash_seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == expected


def test_splits_share_no_content() -> None:
    train = generate_games(0, "train", 80, PLAIN_TASK_TYPES, PLAIN)
    held_out = [
        game
        for split in ("valid_seen", "panel")
        for game in generate_games(0, split, 40, PLAIN_TASK_TYPES, PLAIN)
    ]
    assert all(is_for_training(game) for game in train)
    assert not any(is_for_training(game) for game in held_out)
    hashes = [game.content_hash for game in (*train, *held_out)]
    assert len(set(hashes)) == len(hashes)


def test_ids_order_and_a_longer_list_begins_alike() -> None:
    games = generate_games(0, "train", 8)
    assert [game.id for game in games] == [
        f"generated/train/{index:06d}-{TASK_TYPES[index % 6]}" for index in range(8)
    ]
    assert generate_games(0, "train", 14)[:8] == games
    assert {game.split for game in games} == {"train"}
    assert generate_games(1, "train", 8) != games


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "options",
    [{"receptacles": (5, 3)}, {"targets": (0, 1)}, {"lookalike": 1.5}, {"rooms": ()}, {"rooms": ("attic",)}],
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="generator"):
        GeneratorOptions(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_a_task_that_no_object_suits_is_refused() -> None:
    with pytest.raises(ConfigError, match="suits pick_heat"):
        generate_game(0, "pick_heat_then_place_in_recep", "kitchen", GeneratorOptions(objects=("Fork",)))
    with pytest.raises(ConfigError, match="no task"):
        generate_game(0, "pick_nothing", "kitchen")
    with pytest.raises(ConfigError, match="0 task types"):
        generate_games(0, "train", 1, ())


def test_every_catalogued_object_has_a_place_in_its_room() -> None:
    for kind in ROOMS.values():
        for thing in kind.objects:
            assert sum((place, thing) in FITS for place in kind.receptacles) >= 2, thing
        for thing in kind.oddments:
            assert not any((place, thing) in FITS for place in kind.receptacles)
