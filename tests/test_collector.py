"""What stands in a run is left out of the collector's walks, and nothing else is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing
from weakref import ref

import pytest

from pivotopd.collector import Standing


class Ring:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_is_left_out() -> Iterator[None]:
    yield
    assert gc.get_freeze_count() == 0


def left_out(thing: object) -> bool:
    return not any(one is thing for one in gc.get_objects())


def test_what_stands_is_left_out_and_what_comes_later_is_not() -> None:
    old = Ring()
    with closing(Standing()) as standing:
        standing.settle()
        new = Ring()
        assert left_out(old)
        assert not left_out(new)
    assert not left_out(old)


def test_garbage_of_before_is_freed_and_not_kept() -> None:
    gone = ref(Ring())
    with closing(Standing()) as standing:
        standing.settle()
        assert gone() is None


def test_garbage_of_afterwards_is_collected_as_ever() -> None:
    with closing(Standing()) as standing:
        standing.settle()
        gone = ref(Ring())
        gc.collect()
        assert gone() is None


def test_a_second_call_leaves_nothing_more_out() -> None:
    with closing(Standing()) as standing:
        standing.settle()
        later = Ring()
        standing.settle()
        assert not left_out(later)


def test_what_never_settled_puts_nothing_back() -> None:
    old = Ring()
    with closing(Standing()) as outer:
        outer.settle()
        Standing().close()
        assert left_out(old)
