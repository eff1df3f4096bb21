"""Snapshots of the native engine: plain values, and their bytes.

The bytes are JSON: they can be read by any later process, and reading a foreign file runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, get_args

from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.alfworld.problem import State
from pivotopd.errors import EnvironmentFault

_PAIRS: Final = ("inside", "object_at", "removed")
_WORDINGS: Final = get_args(WordingStyle)


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
        snapshot = Snapshot(state=State(*values), **fields)
        _check_fields(snapshot)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentFault(
            f"The stored state is damaged: {error}", where=where, mend="rerun the rollout stage"
        ) from error
    return snapshot


def _value(name: str, stored: Any) -> Any:
    """Read one part of a state: a name, a set of names, or a set of pairs of names."""
    names: Iterable[Any]
    if name == "location" or (name == "held" and stored is not None):
        names, value = [stored], stored
    elif name == "held":
        names, value = [], stored
    elif not isinstance(stored, list):
        raise ValueError(f"{name} is no list")
    elif name in _PAIRS:
        if not ({*map(type, stored)} <= {list} and {*map(len, stored)} <= {2}):
            raise ValueError(f"{name} holds other things than pairs")
        names, value = chain.from_iterable(stored), frozenset(map(tuple, stored))
    else:
        names, value = stored, frozenset(stored)
    if not {*map(type, names)} <= {str}:
        raise ValueError(f"{name} holds what is no name")
    return value


def _check_fields(snapshot: Snapshot) -> None:
    """Refuse other values than play gives."""
    texts = (snapshot.task_id, snapshot.content_hash, snapshot.observation)
    right = (
        all(isinstance(text, str) for text in texts)
        and snapshot.wording in _WORDINGS
        and type(snapshot.turns) is int
        and snapshot.turns >= 0
        and isinstance(snapshot.valid, bool)
    )
    if not right:
        raise ValueError("a field has a value that play never gives")
