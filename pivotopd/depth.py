"""How deep training rollouts go, where a method cuts them: its schedule, and what its probes have found.

Only numbers stand here, so a rollout that is cut by them does not depend on any method's code.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import asdict, dataclass

from pivotopd.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Depth:
    """What probes have found so far; without values before the first one.

    Attributes:
        average_turns: Moving average of the depth that probes asked for.
        cap_turns: Depth cap that follows from it.
    """

    average_turns: float | None = None
    cap_turns: int | None = None

    def to_json(self) -> str:
        """Return the text that an update stores."""
        return json.dumps(asdict(self), sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Depth:
        """Read a stored text.

        Raises:
            ArtifactError: It is not one of :meth:`to_json`.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        names = {item.name for item in dataclasses.fields(cls)}
        if isinstance(values, dict) and values.keys() == names:
            average, cap = values["average_turns"], values["cap_turns"]
            known = average is None or (type(average) is float and math.isfinite(average))
            if known and (cap is None or (type(cap) is int and cap >= 1)):
                return cls(average, cap)
        raise ArtifactError(
            "the stored depth is not an average and a cap in turns",
            where=where,
            mend="delete the artifact's folder, rerun the update",
        )


@dataclass(frozen=True, slots=True)
class Curriculum:
    """One more turn every few iterations (TCOD, forward to backward).

    Attributes:
        iterations_per_turn: Iterations until one more turn is played (eta).
        max_turns: Most turns.
    """

    iterations_per_turn: int
    max_turns: int

    def limit(self, iteration: int, depth: Depth) -> int | None:
        """Return the turn limit of an iteration's rollouts; what probes found plays no part."""
        del depth
        return self.turns_at(iteration)

    def turns_at(self, iteration: int) -> int:
        """Return how many turns of an episode are played and train: 1 + floor(iteration / eta)."""
        return min(1 + iteration // self.iterations_per_turn, self.max_turns)


@dataclass(frozen=True, slots=True)
class Tail:
    """An expert begins, and one more turn of its way is the student's every few iterations (TCOD, b2f).

    Attributes:
        iterations_per_turn: Iterations until the expert leaves one more turn (eta).
        max_turns: Most turns that it leaves.
    """

    iterations_per_turn: int
    max_turns: int

    def limit(self, iteration: int, depth: Depth) -> None:
        """Return None: rollouts are not cut."""
        del iteration, depth

    def turns_at(self, iteration: int) -> int:
        """Return how many turns of its way the expert leaves to the student."""
        return min(1 + iteration // self.iterations_per_turn, self.max_turns)


@dataclass(frozen=True, slots=True)
class Probes:
    """A cap that follows from rollouts that are not cut (TurnOPD).

    Attributes:
        warm_up: Iterations at the start that are not cut and have no cap.
        every: Iterations between later probes; the first comes right after the warm-up.
        max_turns: Largest cap.
    """

    warm_up: int
    every: int
    max_turns: int

    def uncut(self, iteration: int) -> bool:
        """Tell whether an iteration plays rollouts that are not cut: the warm-up, and every probe."""
        since = iteration - self.warm_up
        return since < 0 or since % self.every == 0

    def cap(self, iteration: int, depth: Depth) -> int:
        """Return how many turns of an episode train; a probe plays more than that."""
        if iteration < self.warm_up or depth.cap_turns is None:
            return self.max_turns
        return min(depth.cap_turns, self.max_turns)

    def limit(self, iteration: int, depth: Depth) -> int | None:
        """Return the turn limit of an iteration's rollouts; None where they are not cut."""
        return None if self.uncut(iteration) else self.cap(iteration, depth)


DepthCut = Curriculum | Tail | Probes
"""How a method cuts its rollouts, or where the student enters them."""
