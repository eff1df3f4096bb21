"""Noisy demonstrations for a tiny student: one clean gap without a hint, obedience with one.

Each state that a noisy player visits gives one row. A plain row shows what the demonstrator does, with its
gap or, in games that are demonstrated without it, as well as the prompt allows; a hinted row has some action
as its hint and does it. Both describe the situation in the same style.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pivotopd.environments.alfworld.demonstrator import Demonstrator, Situation, demonstrator_of, read
from pivotopd.environments.alfworld.engine import Engine, WordingStyle
from pivotopd.environments.alfworld.games import Game
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import State, goal_holds, parse_problem
from pivotopd.environments.alfworld.rooms import LOOKALIKES
from pivotopd.environments.base import View
from pivotopd.errors import ConfigError
from pivotopd.seeds import rng_of

ORACLE_SHARE: Final = 1 / 4
"""Share of hints that name an optimal action."""
INFORMED_SHARE: Final = 1 / 3
"""Share of hints that name what an agent without the gap would do; the rest are random admissible actions."""

_TWINS: Final = {one.lower(): other.lower() for one, other in LOOKALIKES.items()}


@dataclass(frozen=True)
class Noise:
    """How the player that visits states departs from the demonstrator. Rows carry no such noise.

    Attributes:
        epsilon: Probability of a random admissible action.
        mistake: Probability of taking a lookalike where the gap says so.
        wander: Probability of going on with a wrong object in hand.
    """

    epsilon: float = 0.15
    mistake: float = 0.8
    wander: float = 0.75


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One row: what the student sees and what it should answer.

    Attributes:
        view: The view, with the hint of a hinted row.
        response: The reply.
        hinted: The view has a hint, and the reply obeys it.
    """

    view: View
    response: str
    hinted: bool


def demonstrations(
    games: Iterable[Game],
    seed: int,
    *,
    hinted_share: float,
    history: int,
    max_turns: int,
    gap_share: float = 1.0,
    wording: WordingStyle = "move",
    noise: Noise | None = None,
) -> Iterator[Demonstration]:
    """Play games noisily and yield a row for each turn.

    Args:
        games: Games of the four task types that bring one object to a place.
        seed: Seed of all draws; a game's rows depend on it and on the game's id only.
        hinted_share: Share of rows with a hint.
        history: Observation/action pairs in a view.
        max_turns: Longest episode.
        gap_share: Share of games whose demonstrator has the gap.
        wording: Style of commands.
        noise: How the visiting player errs.

    Raises:
        ConfigError: A game's task type has no demonstrator.
        GameError: A game cannot be used.
    """
    for game in games:
        with_gap = bool(rng_of("demonstrator's gap", seed, game.id).random() < gap_share)
        play = _Play(game, seed, hinted_share, history, wording, noise or Noise(), with_gap)
        yield from play.rows(max_turns)


class _Play:
    """One noisy episode."""

    def __init__(
        self,
        game: Game,
        seed: int,
        hinted_share: float,
        history: int,
        wording: WordingStyle,
        noise: Noise,
        with_gap: bool,
    ) -> None:
        self.world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        goal = self.world.goal
        if goal.receptacle_type is None or goal.count != 1:
            raise ConfigError(
                f"There is no demonstrator for {goal.task_type}.",
                where=game.id,
                mend="leave look_at_obj_in_light and pick_two_obj_and_place out of a tiny student's tasks",
            )
        kind = goal.object_type.removesuffix("type")
        self.agent: Demonstrator = demonstrator_of(goal, _TWINS.get(kind))
        self.engine = Engine(self.world, wording)
        self.oracle = Oracle(self.world)
        self.rng = rng_of("demonstration", seed, game.id)
        self.hinted_share, self.history, self.noise = hinted_share, history, noise
        self.shown_action = self.agent.gap_action if with_gap else self.agent.informed_action

    def rows(self, max_turns: int) -> Iterator[Demonstration]:
        """Play, one row a turn, until the game is won or the turns are used up."""
        state, observation = self.world.start, self.engine.reset_text()
        pairs: list[tuple[str, str]] = []
        draws = self.rng.random((max_turns, 6))
        for turn in range(max_turns):
            admissible = self.engine.admissible(state)
            shown = tuple(pairs[-self.history :]) if self.history else ()
            view = View(self.world.sentence, shown, turn, observation, admissible)
            now = read(view, self.agent.tool)
            yield self._row(view, now, state, draws[turn])
            action = self._visit(view, now, draws[turn])
            pairs.append((observation, action))
            state, observation, _ = self.engine.apply(state, action)
            if goal_holds(self.world, state):
                return

    def _row(self, view: View, now: Situation, state: State, draws: npt.NDArray[np.float64]) -> Demonstration:
        if draws[0] >= self.hinted_share:
            return Demonstration(view, self.agent.response(now, self.shown_action(now)), hinted=False)
        admissible = view.admissible or ()
        hint = self.agent.informed_action(now)
        if draws[1] < ORACLE_SHARE:
            best = self.oracle.optimal_actions(state, self.engine.wording)
            hint = _one_of(best, draws[2]) if best else hint
        elif draws[1] >= ORACLE_SHARE + INFORMED_SHARE:
            hint = _one_of(admissible, draws[2])
        return Demonstration(replace(view, hint=hint), self.agent.response(now, hint), hinted=True)

    def _visit(self, view: View, now: Situation, draws: npt.NDArray[np.float64]) -> str:
        """Return the action that leads to the next state."""
        admissible, noise = view.admissible or (), self.noise
        if draws[3] < noise.epsilon:
            return _one_of(admissible, draws[4])
        action = self.agent.gap_action(now)
        informed = self.agent.informed_action(now)
        if action != informed:
            kept = noise.mistake if now.held is None else noise.wander
            return action if draws[5] < kept else informed
        return action


def _one_of(items: tuple[str, ...], draw: float) -> str:
    """Pick an item by a uniform draw from [0, 1)."""
    return items[int(draw * len(items))]
