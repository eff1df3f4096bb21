"""One at a time has the engine; a flight keeps it, until its client has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pivotopd.services.turns import Turns

SOON_S = 0.01


def tried(body: Callable[[], Awaitable[list[str]]]) -> list[str]:
    async def bounded() -> list[str]:
        async with asyncio.timeout(60):
            return await body()

    return asyncio.run(bounded())


async def others() -> None:
    """Let every task go as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_those_that_come_at_once_go_in_one_by_one() -> None:
    async def body() -> list[str]:
        turns, seen = Turns(), list[str]()

        async def call(name: str) -> None:
            async with turns.turn():
                seen.append(f"{name} in")
                await others()
                seen.append(f"{name} out")

        await asyncio.gather(*(call(name) for name in "abc"))
        return seen

    assert tried(body) == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_a_flight_keeps_the_engine_between_its_calls() -> None:
    async def body() -> list[str]:
        turns, seen = Turns(), list[str]()

        async def call(name: str, flight: str | None, keep: str | None) -> None:
            async with turns.turn(flight):
                seen.append(name)
                turns.holder = keep

        await call("begin", "f", "f")
        waiting = [
            asyncio.create_task(call(name, flight, None)) for name, flight in (("a", None), ("b", "g"))
        ]
        await others()
        await call("goes on", "f", "f")
        await others()
        await call("ends", "f", None)
        await asyncio.gather(*waiting)
        return seen

    assert tried(body) == ["begin", "goes on", "ends", "a", "b"]


def test_who_is_silent_is_passed_over_once_somebody_waits() -> None:
    async def body() -> list[str]:
        now_s = [0.0]
        turns, seen = Turns(SOON_S, lambda: now_s[0]), list[str]()

        async def call(name: str, flight: str | None) -> None:
            async with turns.turn(flight):
                seen.append(name)

        async with turns.turn("f"):
            turns.holder = "f"
        waiting = asyncio.create_task(call("another", None))
        await asyncio.sleep(3 * SOON_S)  # it looks again and again
        await call("in time", "f")
        now_s[0] += SOON_S
        await waiting
        return [*seen, str(turns.holder)]

    assert tried(body) == ["in time", "another", "f"]


def test_an_error_inside_lets_the_next_one_in() -> None:
    async def body() -> list[str]:
        turns = Turns()
        try:
            async with turns.turn():
                raise ZeroDivisionError
        except ZeroDivisionError:
            async with turns.turn():
                return ["in"]

    assert tried(body) == ["in"]
