"""The engines of a pool that live, and where prompts that begin alike go."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from pivotopd.errors import EngineFault, PivotError
from pivotopd.models.base import PolicyEngine
from pivotopd.services.protocol import Role

logger = logging.getLogger(__name__)
_PREFIX_TOKENS: Final = 256
"""Tokens of a prompt by which it is known again."""


class Crew:
    """Engines that hold one policy.

    Args:
        engines: The engines by name, such as their addresses.
        role: What they are, for errors.

    Attributes:
        alive: Those that have not ended.
    """

    def __init__(self, engines: Mapping[str, PolicyEngine], role: Role) -> None:
        self.alive = dict(engines)
        self._names, self._role = tuple(engines), role
        self._homes: dict[tuple[int, ...], str] = {}

    def home(self, prompt_ids: Sequence[int], loads: Mapping[str, int], most: int) -> str:
        """Return the engine that computes a prompt: the one that knows it, unless that has its share.

        Args:
            prompt_ids: The prompt.
            loads: Requests of each living engine.
            most: The share that none may pass.
        """
        prefix = tuple(prompt_ids[:_PREFIX_TOKENS])
        home = self._homes.get(prefix)
        if home is None or home not in loads or loads[home] >= most:
            home = min(loads, key=lambda name: loads[name])
            self._homes.setdefault(prefix, home)
        return home

    def need(self) -> None:
        """Refuse to go on without an engine.

        Raises:
            EngineFault: None lives.
        """
        if not self.alive:
            raise EngineFault(
                f"no {self._role} engine is left",
                where=", ".join(self._names),
                mend="start them again and resume",
            )

    def drop(self, name: str, error: PivotError) -> None:
        """Give an engine up."""
        self.alive.pop(name)
        self._homes = {prefix: home for prefix, home in self._homes.items() if home != name}
        logger.warning("%s engine %s is given up: %s", self._role, name, error.what)

    def forget(self) -> None:
        """Forget who knows which prompt."""
        self._homes.clear()
