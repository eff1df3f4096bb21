"""Questions that come together are asked together, by one thread at a time; errors reach who asked."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Event

import pytest

from pivotopd.teacher.courier import Courier

LONG_S = 60.0
"""Only a failing test waits that long."""


def test_questions_of_one_moment_are_asked_together() -> None:
    asked: list[list[int]] = []

    def doubled(questions: Sequence[int]) -> list[int]:
        asked.append(list(questions))
        return [2 * one for one in questions]

    courier = Courier(doubled, waits=True, linger_s=LONG_S)
    promises = [courier.ask([1, 2]), courier.ask([]), courier.ask([3])]
    courier.hurry()
    assert [one.result(LONG_S) for one in promises] == [[2, 4], [], [6]]
    assert asked == [[1, 2, 3]]
    later = [courier.ask([4]), courier.ask([5])]  # an old hurry does not hold for them
    courier.hurry()
    assert [one.result(LONG_S) for one in later] == [[8], [10]]
    assert asked[1:] == [[4, 5]]
    courier.close()


def test_what_comes_while_the_teacher_answers_goes_together() -> None:
    asked: list[list[int]] = []
    began, go = Event(), Event()

    def slow(questions: Sequence[int]) -> list[int]:
        asked.append(list(questions))
        began.set()
        assert go.wait(LONG_S)
        return list(questions)

    courier = Courier(slow, waits=True, linger_s=0.0)
    promises: list[Future[Sequence[int]]] = [courier.ask([1])]
    assert began.wait(LONG_S)
    promises += [courier.ask([2]), courier.ask([3])]
    go.set()
    wait(promises, LONG_S)
    assert asked == [[1], [2, 3]]
    courier.close()


@pytest.mark.parametrize("waits", [True, False])
def test_an_error_reaches_all_who_asked(waits: bool) -> None:
    def fails(_questions: Sequence[int]) -> list[int]:
        raise ValueError("no")

    courier = Courier(fails, waits=waits, linger_s=0.0)
    with pytest.raises(ValueError, match="no"):
        courier.ask([1]).result(LONG_S)
    courier.close()


def test_without_a_thread_the_answer_is_there_at_once() -> None:
    courier: Courier[int, int] = Courier(lambda questions: [-one for one in questions], waits=False)
    assert courier.ask([1, 2]).result(0) == [-1, -2]
