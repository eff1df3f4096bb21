"""Snapshots of the native engine: plain values, and their bytes.

The bytes are JSON: they can be read by any later process, and reading a foreign file runs no code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.alfworld.problem import State
from pivotopd.errors import EnvironmentFault

_PAIRS: Final = ("inside", "object_at", "removed")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An episode before its next turn, as plain data.

    Attributes:
        task_id: The game.
        content_hash: Hash of the game's content.
        wording: Style of the text.
        state: The state.
        turns: Actions played so far.
        observation: The last observation.
        valid: Whether the last action was recognised.
    """

    task_id: str
    content_hash: str
    wording: WordingStyle
    state: State
    turns: int
    observation: str
    valid: bool


def to_bytes(snapshot: Snapshot) -> bytes:
    """Return a snapshot as JSON: sets become sorted lists, so equal snapshots give equal bytes."""
    state = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in zip(State._fields, snapshot.state, strict=True)
    }
    fields: dict[str, Any] = {
        "task_id": snapshot.task_id,
        "content_hash": snapshot.content_hash,
        "wording": snapshot.wording,
        "state": state,
        "turns": snapshot.turns,
        "observation": snapshot.observation,
        "valid": snapshot.valid,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def from_bytes(data: bytes, where: str) -> Snapshot:
    """Read a snapshot back.

    Raises:
        EnvironmentFault: The bytes are no snapshot; ``where`` is named.
    """
    try:
        fields = json.loads(data)
        state = fields.pop("state")
        values = [_value(name, state.pop(name)) for name in State._fields]
        if state:
            raise ValueError(f"unknown parts {sorted(state)}")
        return Snapshot(state=State(*values), **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentFault(
            f"The stored state is damaged: {error}", where=where, mend="rerun the rollout stage"
        ) from error


def _value(name: str, stored: Any) -> Any:
    if not isinstance(stored, list):
        return stored
    return frozenset(tuple(item) for item in stored) if name in _PAIRS else frozenset(stored)
