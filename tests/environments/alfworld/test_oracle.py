"""The oracle against hand-counted cases, against all reachable states of small games, and against records."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld.engine import Engine
from pivotopd.environments.alfworld.generator import GeneratorOptions, generate_game
from pivotopd.environments.alfworld.goals import TASK_TYPES
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import State, World, goal_holds, parse_problem
from pivotopd.environments.alfworld.projection import Projector
from pivotopd.environments.alfworld.rooms import ROOMS, Room
from pivotopd.environments.alfworld.search import shortest
from pivotopd.environments.distances import classify_distances
from pivotopd.errors import GameError, SearchLimit
from tests.environments.alfworld import rooms

SMALL = GeneratorOptions(
    receptacles=(3, 5), targets=(1, 3), distractors=(0, 2), colocated=0.35, several_receptacles=0.5,
    lookalike=0.3, dead_end=0.7, cool_start=0.6, unopenable=0.5, gaps=0.3, stale=0.0, nested=0.0, loose=0.0,
    fixtures=0.0,
)  # fmt: skip
STATE_LIMIT = 4_000


def world_of(seed: int, task_type: str, room: Room, options: GeneratorOptions | None = None) -> World:
    game = generate_game(seed, task_type, room, options)
    return parse_problem(game.pddl_problem, game.task_sentence, game.id)


def bare(state: State) -> State:
    """Drop what no distance can depend on, so that the state space stays small."""
    return state._replace(object_at=frozenset(), removed=frozenset(), sliced=frozenset())


def true_distances(world: World) -> dict[State, int | None] | None:
    """Play every command in every reachable state, then count back from the won ones; None if too many."""
    engine = Engine(world)
    first = bare(world.start)
    before: dict[State, list[State]] = {first: []}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        for command in engine.admissible(state):
            after = bare(engine.apply(state, command).state)
            if after not in before:
                if len(before) == STATE_LIMIT:
                    return None
                before[after] = []
                queue.append(after)
            before[after].append(state)
    found: dict[State, int | None] = dict.fromkeys(before)
    won = [state for state in before if goal_holds(world, state)]
    found.update(dict.fromkeys(won, 0))
    queue.extend(won)
    while queue:
        state = queue.popleft()
        distance = found[state]
        assert distance is not None
        for earlier in before[state]:
            if found[earlier] is None:
                found[earlier] = distance + 1
                queue.append(earlier)
    return found


# ---------------------------------------------------------------------- exactness


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_reachable_state_of_small_games_has_its_true_distance(task_type: str) -> None:
    states = dead = 0
    for seed in range(8):
        world = world_of(seed, task_type, list(ROOMS)[seed % 4], SMALL)
        truth = true_distances(world)
        if truth is None:
            continue
        oracle = Oracle(world)
        assert {state: oracle.distance(state) for state in truth} == truth
        states += len(truth)
        dead += sum(distance is None for distance in truth.values())
    assert states > 1_000
    assert dead > 0


def test_a_held_object_that_also_lies_in_a_target_is_put_down_where_one_stands() -> None:
    """The second object is here, and the first one counts where it lies already."""
    world = rooms.kitchen(rooms.TWO.format("Mug", "Fridge"))
    state, _ = rooms.play(
        world, "go to shelf 1", f"take {world.names['mug_bar_2']} from {name(world, 'shelf_bar_1')}"
    )
    oracle = Oracle(world)
    # move it to the shelf, take another, go to the fridge, open it, move that one
    assert oracle.distance(state) == 5


def name(world: World, key: str) -> str:
    return world.names[key]


# ---------------------------------------------------------------------- positions are sets


def test_heating_a_mug_that_still_lies_in_its_target_wins_at_once() -> None:
    """Mug 2 lies on the shelf and in the fridge: taken from the shelf and heated, it is a hot mug there."""
    world = rooms.kitchen(rooms.HEAT_MUG)
    oracle = Oracle(world)
    mug, shelf, microwave = (name(world, key) for key in ("mug_bar_2", "shelf_bar_1", "microwave_bar_1"))
    assert oracle.distance(world.start) == 4
    state, _ = rooms.play(world, f"go to {shelf}", f"take {mug} from {shelf}")
    assert oracle.optimal_actions(state) == (f"go to {microwave}",)
    state, _ = rooms.play(world, f"go to {microwave}", start=state)
    assert oracle.optimal_actions(state) == (f"heat {mug} with {microwave}",)
    state, _ = rooms.play(world, f"heat {mug} with {microwave}", start=state)
    assert goal_holds(world, state)
    assert oracle.distance(state) == 0
    assert oracle.optimal_actions(state) == ()


def test_a_plain_object_needs_six_turns_to_be_heated_and_placed() -> None:
    """go, take, go, heat, go, move: the target, a shelf, does not close."""
    world = rooms.kitchen(rooms.TOOL.format("Mug", "SinkBasin", "heat", "Hot"))
    assert Oracle(world).distance(world.start) == 6


# ---------------------------------------------------------------------- classes of turns


def test_taking_what_fits_nowhere_is_dead() -> None:
    world = rooms.kitchen()
    egg, sink = name(world, "egg_bar_1"), name(world, "sink_bar_1_bar_sinkbasin")
    before, _ = rooms.play(world, f"go to {sink}")
    after, _ = rooms.play(world, f"take {egg} from {sink}", start=before)
    oracle = Oracle(world)
    assert oracle.distance(after) is None
    assert oracle.classify(before, after) == "dead"
    assert oracle.optimal_actions(after) == ()
    assert oracle.classify(after, after) == "neutral"


def test_putting_the_object_down_elsewhere_is_a_regress() -> None:
    """An apple in the hand at the sink is two turns from the shelf; put into the sink, it is three."""
    world = rooms.kitchen()
    fridge, sink = name(world, "fridge_bar_1"), name(world, "sink_bar_1_bar_sinkbasin")
    apple = name(world, "apple_bar_1")
    before, _ = rooms.play(
        world, f"go to {fridge}", f"open {fridge}", f"take {apple} from {fridge}", f"go to {sink}"
    )
    after, _ = rooms.play(world, f"move {apple} to {sink}", start=before)
    oracle = Oracle(world)
    assert (oracle.distance(before), oracle.distance(after)) == (2, 3)
    assert oracle.classify(before, after) == "regress"
    assert oracle.classify(before, before) == "neutral"


def test_a_wrong_object_in_the_hand_costs_the_turns_to_put_it_down() -> None:
    world = rooms.kitchen()
    sink, bowl = name(world, "sink_bar_1_bar_sinkbasin"), name(world, "bowl_bar_1")
    before, _ = rooms.play(world, f"go to {sink}")
    after, _ = rooms.play(world, f"take {bowl} from {sink}", start=before)
    oracle = Oracle(world)
    assert (oracle.distance(before), oracle.distance(after)) == (5, 6)
    # Put down here, or carried to where the apple is and put down there: the same number of turns.
    assert oracle.optimal_actions(after) == (f"go to {name(world, 'fridge_bar_1')}", f"move {bowl} to {sink}")
    assert f"put {bowl} in/on {sink}" in oracle.optimal_actions(after, "put")


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(3, 2, "progress"), (2, 2, "neutral"), (4, 5, "regress"), (4, None, "dead"), (None, None, "neutral")],
)
def test_classes(before: int | None, after: int | None, change: str) -> None:
    assert classify_distances(before, after) == change


def test_a_lamp_at_two_places_serves_at_either() -> None:
    """Lamp on shelf 2 (beside shelf 1, where the mugs are) and in cabinet 2: go, take, use."""
    world = rooms.kitchen(rooms.MUG_UNDER_LAMP)
    assert Oracle(world).distance(world.start) == 3


def test_a_lamp_that_can_be_carried_is_refused() -> None:
    with pytest.raises(GameError, match="carried"):
        Oracle(rooms.kitchen(rooms.MUG_UNDER_LAMP, extra=["pickupable DeskLamp_bar_1"]))


def test_the_node_limit_is_an_error_and_never_unsolvable() -> None:
    world = world_of(5, "pick_two_obj_and_place", "livingroom")
    problem = Projector(world)(world.start)
    assert shortest(problem, node_limit=10_000) == Oracle(world).distance(world.start)
    with pytest.raises(SearchLimit, match="passed 1 states"):
        shortest(problem, node_limit=1)


# ---------------------------------------------------------------------- properties in large games


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    task_type=st.sampled_from(TASK_TYPES),
    room=st.sampled_from(list(ROOMS)),
    walk=st.lists(st.integers(0, 10_000), max_size=15),
)
def test_optimal_actions_are_exactly_the_commands_that_shorten_the_way(
    seed: int, task_type: str, room: Room, walk: list[int]
) -> None:
    world = world_of(seed, task_type, room)
    engine, oracle, state = Engine(world), Oracle(world), world.start
    for step in walk:
        commands = engine.admissible(state)
        state = engine.apply(state, commands[step % len(commands)]).state
    distance = oracle.distance(state)
    shorter = []
    for command in engine.admissible(state):
        after = oracle.distance(engine.apply(state, command).state)
        if distance is None:
            assert after is None
            continue
        if distance > 0:  # a won game may be undone by any number of turns
            # Whatever was done can be undone: put back, fetched again, closed doors opened.
            assert after is None or distance - 1 <= after <= distance + 6
        if after == distance - 1:
            shorter.append(command)
    assert oracle.optimal_actions(state) == tuple(sorted(shorter))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    task_type=st.sampled_from(TASK_TYPES),
    room=st.sampled_from(list(ROOMS)),
    walk=st.lists(st.integers(0, 10_000), max_size=15),
)
def test_leaving_out_interchangeable_things_changes_no_distance(
    seed: int, task_type: str, room: Room, walk: list[int]
) -> None:
    world = world_of(seed, task_type, room)
    engine, state = Engine(world), world.start
    for step in walk:
        commands = engine.admissible(state)
        state = engine.apply(state, commands[step % len(commands)]).state
    whole = Projector(world, keep=1_000)(state)
    try:
        distance = shortest(whole, node_limit=20_000)
    except SearchLimit:
        reject()
    assert Oracle(world).distance(state) == distance


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_following_any_optimal_action_wins_in_as_many_turns(task_type: str) -> None:
    for seed in range(6):
        for room in ROOMS:
            world = world_of(seed, task_type, room)
            engine, oracle, state = Engine(world, "put"), Oracle(world), world.start
            distance = oracle.distance(state)
            assert distance is not None
            for left in range(distance, 0, -1):
                assert oracle.distance(state) == left
                best = oracle.optimal_actions(state, "put")
                state, _, valid = engine.apply(state, best[(seed + left) % len(best)])
                assert valid
            assert goal_holds(world, state)


# ---------------------------------------------------------------------- records of the official games


def test_recorded_distances_of_official_games(shared_data: Path) -> None:
    """Every turn of the recorded play: the distance is what a verified oracle gave."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(shared_data / "alfworld" / "traces.parquet").to_pylist()
    wanted = {row["game_id"] for row in rows}
    games = {
        row["game_id"]: row
        for split in ("valid_seen", "train")
        for row in parquet.read_table(
            shared_data / "alfworld" / f"{split}.parquet", filters=[("game_id", "in", wanted)]
        ).to_pylist()
    }
    compared = 0
    for row in rows:
        if row["turn"] == 0:
            game = games[row["game_id"]]
            world = parse_problem(game["pddl_problem"], game["task_sentence"], row["game_id"])
            engine, oracle, state = Engine(world), Oracle(world), world.start
        else:
            state = engine.apply(state, row["action"]).state
        assert oracle.distance(state) == row["oracle_distance"], (row["game_id"], row["turn"])
        compared += 1
    assert compared == len(rows) > 1_000
