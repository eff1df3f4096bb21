"""The informed oracle: it uses what was shown and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld.engine import Engine, WordingStyle
from pivotopd.environments.alfworld.generator import generate_game
from pivotopd.environments.alfworld.goals import TASK_TYPES
from pivotopd.environments.alfworld.informed import InformedOracle, Knowledge
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import State, World, goal_holds, parse_problem
from pivotopd.environments.alfworld.rooms import ROOMS, Room
from tests.environments.alfworld import rooms


class Player:
    """Plays and reads along."""

    def __init__(self, world: World, wording: WordingStyle = "move") -> None:
        self.world, self.wording = world, wording
        self.engine, self.oracle = Engine(world, wording), InformedOracle(world)
        self.state, self.known = world.start, Knowledge()

    def do(self, *commands: str) -> None:
        for command in commands:
            assert command in self.engine.admissible(self.state), command
            self.state, text, _ = self.engine.apply(self.state, command)
            self.known = self.oracle.read([text], self.known)

    def best(self) -> tuple[str, ...]:
        return self.oracle.best_actions(self.state, self.known, self.wording)


@pytest.fixture
def names() -> dict[str, str]:
    """Display names of the kitchen, by id."""
    return dict(rooms.kitchen().names)


# ---------------------------------------------------------------------- what is known


def test_contents_are_known_once_they_were_shown(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen())
    fridge, shelf = names["fridge_bar_1"], names["shelf_bar_1"]
    player.do(f"go to {fridge}")
    assert player.known.shown == frozenset()  # closed
    player.do(f"open {fridge}", f"close {fridge}", f"go to {shelf}")
    assert player.known.shown == {"fridge_bar_1", "shelf_bar_1"}  # not the second shelf at the same place


@pytest.mark.parametrize("wording", ["move", "put"])
def test_what_the_agent_did_is_known(names: dict[str, str], wording: WordingStyle) -> None:
    player = Player(rooms.kitchen(rooms.CLEAN_APPLE), wording)
    fridge, sink, apple = names["fridge_bar_1"], names["sink_bar_1_bar_sinkbasin"], names["apple_bar_1"]
    shelf, other = names["shelf_bar_1"], names["shelf_bar_2"]
    player.do(f"go to {fridge}", f"open {fridge}", f"take {apple} from {fridge}", f"go to {sink}")
    player.do(f"clean {apple} with {sink}")
    assert player.known.checked == {"apple_bar_1"}
    put = f"move {apple} to {other}" if wording == "move" else f"put {apple} in/on {other}"
    player.do(f"go to {shelf}", put)
    assert player.known.placed == {("apple_bar_1", "shelf_bar_2")}
    assert goal_holds(player.world, player.oracle.known_state(player.state, player.known))


def test_a_start_temperature_is_hidden_until_examined(names: dict[str, str]) -> None:
    """The apple starts cool; the agent cannot know, so it cools it, unless it has looked."""
    player = Player(rooms.kitchen(rooms.COOL_APPLE, extra=["isCool Apple_bar_1"]))
    fridge, apple = names["fridge_bar_1"], names["apple_bar_1"]
    player.do(f"go to {fridge}", f"open {fridge}", f"take {apple} from {fridge}")
    assert player.best() == (f"cool {apple} with {fridge}",)
    player.do(f"examine {apple}")
    assert set(player.best()) == {f"go to {names['shelf_bar_1']}", f"go to {names['shelf_bar_2']}"}


# ---------------------------------------------------------------------- what to do


def test_with_nothing_known_every_receptacle_is_worth_a_visit() -> None:
    player = Player(rooms.kitchen())
    gone = sorted(f"go to {player.world.names[r]}" for r in player.world.receptacles)
    assert list(player.best()) == gone


def test_a_closed_one_here_is_opened_and_a_neighbour_examined(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen())
    player.do(f"go to {names['cabinet_bar_1']}")
    assert player.best() == (f"open {names['cabinet_bar_1']}",)
    player.do(f"go to {names['shelf_bar_1']}")
    assert player.best() == (f"examine {names['shelf_bar_2']}",)


def test_the_seen_object_is_fetched_from_memory(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen())
    fridge, apple = names["fridge_bar_1"], names["apple_bar_1"]
    player.do(f"go to {fridge}", f"open {fridge}", f"go to {names['cabinet_bar_2']}")
    assert player.best() == (f"go to {fridge}",)
    player.do(f"go to {fridge}")
    assert player.best() == (f"take {apple} from {fridge}",)


def test_a_useless_object_is_put_down_before_looking_on(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen())
    sink, bowl = names["sink_bar_1_bar_sinkbasin"], names["bowl_bar_1"]
    player.do(f"go to {sink}", f"take {bowl} from {sink}")
    assert player.best() == (f"move {bowl} to {sink}",)


def test_a_useless_object_that_fits_nowhere_leaves_nothing_to_do(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen())
    sink, egg = names["sink_bar_1_bar_sinkbasin"], names["egg_bar_1"]
    player.do(f"go to {sink}", f"take {egg} from {sink}")
    assert player.best() == ()


def test_nothing_left_to_explore_leaves_nothing_to_do(names: dict[str, str]) -> None:
    """All receptacles were shown, and no apple in them."""
    player = Player(rooms.kitchen())
    everything = Knowledge(frozenset(player.world.receptacles))
    lost = player.state._replace(inside=frozenset(p for p in player.state.inside if p[0] != "apple_bar_1"))
    assert player.oracle.best_actions(lost, everything) == ()
    assert player.oracle.distance(lost, everything) is None


def test_the_first_of_two_is_placed_before_the_second_is_looked_for(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen(rooms.TWO.format("Mug", "Cabinet")))
    fridge, mug, cabinet = names["fridge_bar_1"], names["mug_bar_2"], names["cabinet_bar_2"]
    player.do(f"go to {fridge}", f"open {fridge}")
    assert player.best() == (f"take {mug} from {fridge}",)
    player.do(f"take {mug} from {fridge}")
    assert player.best() == (f"go to {cabinet}",)  # the one that does not close
    player.do(f"go to {cabinet}", f"move {mug} to {cabinet}")
    assert all(command.startswith("go to ") for command in player.best())
    assert f"go to {names['shelf_bar_1']}" in player.best()


def test_the_object_is_fetched_before_the_lamp_is_looked_for(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen(rooms.MUG_UNDER_LAMP))
    player.do(f"go to {names['fridge_bar_1']}", f"open {names['fridge_bar_1']}")
    assert player.best() == (f"take {names['mug_bar_2']} from {names['fridge_bar_1']}",)
    player.do(f"take {names['mug_bar_2']} from {names['fridge_bar_1']}")
    assert f"go to {names['shelf_bar_2']}" in player.best()


def test_the_sweep_follows_the_list_and_wraps_around(names: dict[str, str]) -> None:
    player = Player(rooms.kitchen())
    seen = []
    while (receptacle := player.oracle.next_unseen(player.state, player.known)) is not None:
        command = player.oracle.reveal(player.state, receptacle)
        seen.append(command)
        player.do(command)
        if len(seen) == 1:
            player.do(f"go to {names['shelf_bar_1']}")
    listed = sorted(f"go to {player.world.names[r]}" for r in player.world.receptacles)
    order = [listed.index(command) for command in seen if command.startswith("go to ")]
    assert order[0] == 0
    after_jump = order[1:]
    turning = after_jump.index(min(after_jump))
    assert after_jump[:turning] == sorted(after_jump[:turning])
    assert after_jump[turning:] == sorted(after_jump[turning:])
    assert player.known.shown == set(player.world.receptacles)


# ---------------------------------------------------------------------- properties


def hide(world: World, state: State, known: Knowledge) -> State:
    """Move everything unseen to one unseen receptacle: a different room that looks the same so far."""
    unseen = [r for r in world.receptacles if r not in known.shown]
    moved = {
        (o, unseen[-1]) if r not in known.shown and (o, r) not in known.placed else (o, r)
        for o, r in state.inside
    }
    return state._replace(inside=frozenset(moved))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    task_type=st.sampled_from(TASK_TYPES),
    room=st.sampled_from(list(ROOMS)),
    walk=st.lists(st.integers(0, 10_000), max_size=25),
)
def test_actions_are_admissible_and_do_not_depend_on_what_is_hidden(
    seed: int, task_type: str, room: Room, walk: list[int]
) -> None:
    game = generate_game(seed, task_type, room)
    world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
    player = Player(world)
    for step in walk:
        commands = player.engine.admissible(player.state)
        player.do(commands[step % len(commands)])
    best = player.best()
    assert set(best) <= set(player.engine.admissible(player.state))
    assert best == player.oracle.best_actions(hide(world, player.state, player.known), player.known)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_following_it_wins_every_game_and_knowing_all_it_is_the_oracle(task_type: str) -> None:
    for seed in range(12):
        game = generate_game(seed, task_type, list(ROOMS)[seed % 4])
        player = Player(parse_problem(game.pddl_problem, game.task_sentence, game.id))
        world = player.world
        everything = Knowledge(frozenset(world.receptacles), checked=frozenset(world.object_type))
        assert player.oracle.best_actions(world.start, everything) == Oracle(world).optimal_actions(
            world.start
        )
        for turn in range(6 + 3 * len(world.receptacles)):
            if goal_holds(world, player.state):
                break
            best = player.best()
            player.do(best[(seed + turn) % len(best)])
        assert goal_holds(world, player.state), game.id
