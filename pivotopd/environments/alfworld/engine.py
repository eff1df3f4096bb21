"""The rules of ALFWorld: which commands a state admits, and what each of them does.

An :class:`Engine` belongs to one world and one wording. It never changes after its tables are filled, so all
episodes of a game share it; states are values that go in and come out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from pivotopd.environments.alfworld import describe
from pivotopd.environments.alfworld.problem import TOOL_TYPES, State, World, parse_problem

WordingStyle = Literal["move", "put"]
"""``move`` is the wording of alfworld 0.4, ``put`` that of 0.2."""

Told = tuple[State, str] | None
"""New state and feedback, or None where the command is not admissible."""

_KNIVES: Final = frozenset({"knifetype", "butterknifetype"})
_TOOL_ABILITIES: Final = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}


class Outcome(NamedTuple):
    """What a command did: the new state, the feedback, and whether the engine recognised the command."""

    state: State
    feedback: str
    valid: bool


class _Place(NamedTuple):
    """A location: the commands that it always admits, sorted, and the receptacles there."""

    always: tuple[str, ...]
    here: tuple[str, ...]
    closable: tuple[tuple[str, str, str], ...]  # (receptacle, its open command, its close command)
    tools: tuple[tuple[str, str], ...]  # (tool action, receptacle)


class Engine:
    """Plays one world in one wording.

    Args:
        world: The game.
        wording: The style of commands and feedback.
    """

    def __init__(self, world: World, wording: WordingStyle = "move") -> None:
        self.world = world
        self.wording = wording
        self._tool_types = {tool: frozenset({kind}) for tool, kind in TOOL_TYPES.items()}
        if wording == "put":
            self._tool_types["clean"] |= {"sinktype"}
        names = world.names
        self._receptacle_of = {names[r]: r for r in world.receptacles}
        start = world.start
        things = frozenset(world.object_type) | {o for o, _ in world.start.inside | world.start.object_at}
        self._object_of = {names[o]: o for o in things | ({start.held} if start.held else set())}
        self._go = sorted((f"go to {names[r]}", world.location_of[r]) for r in world.receptacles)
        self._places: dict[str, _Place] = {}
        self._take: dict[tuple[str, str], str] = {}
        self._verbs: dict[str, Callable[[State, str], Told]] = {
            "go": self._go_to, "open": self._open, "close": self._close, "take": self._take_from,
            wording: self._put_down, "examine": self._examine, "use": self._use, "slice": self._slice,
            "clean": lambda state, rest: self._tool("clean", state, rest),
            "heat": lambda state, rest: self._tool("heat", state, rest),
            "cool": lambda state, rest: self._tool("cool", state, rest),
        }  # fmt: skip

    def reset_text(self) -> str:
        """Return the first observation."""
        return describe.reset_text(self.world)

    # ------------------------------------------------------------------ what a state admits

    def admissible(self, state: State) -> tuple[str, ...]:
        """Return the admissible commands, sorted as plain strings, each once."""
        world = self.world
        place = self._places.get(state.location) or self._place(state.location)
        commands = list(place.always)
        if place.here:
            shut = set()
            for receptacle, open_it, close_it in place.closable:
                if receptacle in state.opened:
                    commands.append(close_it)
                else:
                    commands.append(open_it)
                    shut.add(receptacle)
            reach = [r for r in place.here if r not in shut]
            if state.held is None:
                commands += self._takes(state, reach)
            commands += [
                f"use {world.names[lamp]}"
                for lamp in world.toggleable
                if any((lamp, r) in state.inside for r in place.here)
            ]
        else:
            reach = []
        if state.held is not None:
            commands += self._with_hand(state, state.held, place, reach)
        commands.sort()
        return tuple(commands)

    def _place(self, location: str) -> _Place:
        world, names = self.world, self.world.names
        here = world.at.get(location, ())
        always = ["look", "inventory", *(["help"] if self.wording == "move" else [])]
        always += [command for command, goal in self._go if goal != location]
        always += [f"examine {names[r]}" for r in here]
        place = _Place(
            always=tuple(sorted(always)),
            here=here,
            closable=tuple((r, f"open {names[r]}", f"close {names[r]}") for r in here if r in world.openable),
            tools=tuple(
                (tool, r)
                for r in here
                for tool, kinds in self._tool_types.items()
                if world.receptacle_type[r] in kinds
            ),
        )
        self._places[location] = place
        return place

    def _takes(self, state: State, reach: list[str]) -> list[str]:
        """Commands that take something from an accessible receptacle here; one per pair."""
        known, pickupable = self._take, self.world.pickupable
        commands = []
        for pair in state.inside:
            if pair[1] in reach and pair[0] in pickupable:
                command = known.get(pair)
                if command is None:
                    names = self.world.names
                    command = known[pair] = f"take {names[pair[0]]} from {names[pair[1]]}"
                commands.append(command)
        return commands

    def _with_hand(self, state: State, held: str, place: _Place, reach: list[str]) -> list[str]:
        """Commands that need the held object."""
        world, names = self.world, self.world.names
        name = names[held]
        kind = world.object_type.get(held, "")
        commands = [f"examine {name}"]
        commands += [
            self._put_command(name, names[r]) for r in reach if (world.receptacle_type[r], kind) in world.fits
        ]
        commands += [f"{tool} {name} with {names[r]}" for tool, r in place.tools if held in self._able(tool)]
        if kind in _KNIVES:
            commands += [
                f"slice {names[thing]} with {name}"
                for thing, location in state.object_at
                if location == state.location and thing in world.sliceable
            ]
        return commands

    def _put_command(self, thing: str, receptacle: str) -> str:
        if self.wording == "move":
            return f"move {thing} to {receptacle}"
        return f"put {thing} in/on {receptacle}"

    def _able(self, tool: str) -> frozenset[str]:
        able: frozenset[str] = getattr(self.world, _TOOL_ABILITIES[tool])
        return able

    # ------------------------------------------------------------------ what a command does

    def apply(self, state: State, command: str) -> Outcome:
        """Play a command, matched exactly after ``strip()``. An inadmissible one changes nothing."""
        text = command.strip()
        told: Told
        if text == "look":
            told = state, describe.look(self.world, state)
        elif text == "inventory":
            told = state, describe.inventory(self.world, state)
        elif text == "help" and self.wording == "move":
            told = state, describe.HELP
        else:
            verb, _, rest = text.partition(" ")
            rule = self._verbs.get(verb)
            told = rule(state, rest) if rule else None
        if told is None:
            return Outcome(state, describe.NOTHING_HAPPENS, False)
        return Outcome(told[0], told[1], True)

    def _here(self, state: State, name: str) -> str | None:
        """Return the receptacle of that name if the agent is at it."""
        receptacle = self._receptacle_of.get(name)
        if receptacle is None or self.world.location_of[receptacle] != state.location:
            return None
        return receptacle

    def _reach(self, state: State, name: str) -> str | None:
        """Return the receptacle of that name if the agent is at it and it is not closed."""
        receptacle = self._here(state, name)
        if receptacle is None or (receptacle in self.world.openable and receptacle not in state.opened):
            return None
        return receptacle

    def _holds(self, state: State, name: str) -> str | None:
        """Return the held object if it has that name."""
        return state.held if state.held is not None and self.world.names[state.held] == name else None

    def _go_to(self, state: State, rest: str) -> Told:
        to, _, name = rest.partition(" ")
        receptacle = self._receptacle_of.get(name)
        if to != "to" or receptacle is None:
            return None
        location = self.world.location_of[receptacle]
        if location == state.location:  # the operator would change nothing, so the engine does not have it
            return None
        after = state._replace(location=location)
        arrived = name if self.wording == "move" else self.world.names[location]
        return after, f"You arrive at {arrived}. {describe.receptacle(self.world, after, receptacle)}"

    def _open(self, state: State, name: str) -> Told:
        receptacle = self._here(state, name)
        if receptacle not in self.world.openable or receptacle is None or receptacle in state.opened:
            return None
        after = state._replace(opened=state.opened | {receptacle})
        return after, f"You open the {name}. {describe.receptacle(self.world, after, receptacle)}"

    def _close(self, state: State, name: str) -> Told:
        receptacle = self._here(state, name)
        if receptacle not in self.world.openable or receptacle is None or receptacle not in state.opened:
            return None
        return state._replace(opened=state.opened - {receptacle}), f"You close the {name}."

    def _take_from(self, state: State, rest: str) -> Told:
        name, _, source = rest.partition(" from ")
        thing, receptacle = self._object_of.get(name), self._reach(state, source)
        if (
            state.held is not None
            or thing not in self.world.pickupable
            or thing is None
            or receptacle is None
        ):
            return None
        pair = (thing, receptacle)
        if pair not in state.inside:
            return None
        after = state._replace(
            held=thing,
            inside=state.inside - {pair},
            object_at=state.object_at - {(thing, state.location)},
            removed=state.removed | {pair},
        )
        return after, f"You pick up the {name} from the {source}."

    def _put_down(self, state: State, rest: str) -> Told:
        name, _, target = rest.partition(" to " if self.wording == "move" else " in/on ")
        thing, receptacle = self._holds(state, name), self._reach(state, target)
        if thing is None or receptacle is None:
            return None
        world = self.world
        if (world.receptacle_type[receptacle], world.object_type.get(thing, "")) not in world.fits:
            return None
        pair = (thing, receptacle)
        after = state._replace(
            held=None,
            inside=state.inside | {pair},
            object_at=state.object_at | {(thing, state.location)},
            removed=state.removed - {pair},
        )
        if self.wording == "move":
            return after, f"You move the {name} to the {target}."
        return after, f"You put the {name} in/on the {target}."

    def _examine(self, state: State, name: str) -> Told:
        held = self._holds(state, name)
        if held is not None:
            return state, describe.held_object(self.world, state, held)
        receptacle = self._here(state, name)
        return None if receptacle is None else (state, describe.receptacle(self.world, state, receptacle))

    def _tool(self, tool: str, state: State, rest: str) -> Told:
        """Clean, heat or cool the held object: the receptacle need be neither open nor empty."""
        name, _, target = rest.partition(" with ")
        thing, receptacle = self._holds(state, name), self._here(state, target)
        if thing is None or receptacle is None or thing not in self._able(tool):
            return None
        if self.world.receptacle_type[receptacle] not in self._tool_types[tool]:
            return None
        if tool == "clean":
            after = state._replace(clean=state.clean | {thing})
        elif tool == "heat":
            after = state._replace(hot=state.hot | {thing}, cool=state.cool - {thing})
        else:
            after = state._replace(hot=state.hot - {thing}, cool=state.cool | {thing})
        return after, f"You {tool} the {name} using the {target}."

    def _use(self, state: State, name: str) -> Told:
        """Switch a lamp on; it says so every time, and nothing switches it off."""
        lamp = self._object_of.get(name)
        here = self.world.at.get(state.location, ())
        if (
            lamp is None
            or lamp not in self.world.toggleable
            or not any((lamp, r) in state.inside for r in here)
        ):
            return None
        return state._replace(toggled=state.toggled | {lamp}), f"You turn on the {name}."

    def _slice(self, state: State, rest: str) -> Told:
        """Slice an object whose recorded location is here, be it in a closed fridge or in no receptacle."""
        name, _, knife = rest.partition(" with ")
        thing, held = self._object_of.get(name), self._holds(state, knife)
        if held is None or self.world.object_type.get(held) not in _KNIVES:
            return None
        if (
            thing is None
            or thing not in self.world.sliceable
            or (thing, state.location) not in state.object_at
        ):
            return None
        return state._replace(sliced=state.sliced | {thing}), f"You sliced the {name} with the {knife}."


@lru_cache(maxsize=512)
def engine_of(problem: str, sentence: str, where: str, wording: WordingStyle) -> Engine:
    """Return the engine of a game, shared by all its episodes in this process.

    Raises:
        GameError: The game cannot be used.
    """
    return Engine(parse_problem(problem, sentence, where), wording)
