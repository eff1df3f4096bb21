"""From free text to an action: one rule after the other, and no rule that guesses between two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.environments.alfworld.replies import normal_form
from pivotopd.teacher.resolution import OVERLAP, resolve

ADMISSIBLE = [
    "examine shelf 1", "go to fridge 1", "go to shelf 1", "go to shelf 10", "go to shelf 2", "help",
    "inventory", "look", "move apple 1 to fridge 1", "take mug 1 from shelf 1", "take apple 2 from shelf 1",
]  # fmt: skip


def resolved(written: str) -> str | None:
    return resolve(written, ADMISSIBLE, normal_form)


@pytest.mark.parametrize(
    ("written", "action"),
    [
        ("  GO  to\tfridge 1 ", "go to fridge 1"),  # normal form
        ("go to shelf 1", "go to shelf 1"),  # exact before containment: shelf 10 holds it as letters
        ("take the mug 1 from the shelf 1", "take mug 1 from shelf 1"),  # articles
        ("Go to the fridge 1.", "go to fridge 1"),  # marks at the ends
        ("**look**", "look"),
        ("take mug 1", "take mug 1 from shelf 1"),  # held by one action
        ("go to fridge 1 and open it", "go to fridge 1"),  # holds one action
        ("go to shelf 10 now", "go to shelf 10"),  # whole words: not shelf 1
        ("move the apple 1 into fridge 1", "move apple 1 to fridge 1"),  # overlap 5 of 7
        ("pick mug 1 from shelf 1", "take mug 1 from shelf 1"),  # overlap 5 of 7, the next has 4
    ],
)
def test_the_first_rule_that_gives_one_action_wins(written: str, action: str) -> None:
    assert resolved(written) == action


@pytest.mark.parametrize(
    "written",
    [
        "", "   ", "the", "...",
        "go to",  # held by four
        "go over to shelf 3",  # shelf 1, 2 and 10 overlap alike
        "have a look around the whole room",  # one word in a sentence names nothing
        "open the safe 3",  # nothing near
        "去冰箱",
    ],
)  # fmt: skip
def test_nothing_is_guessed(written: str) -> None:
    assert resolved(written) is None


def test_the_overlap_threshold_is_met_exactly() -> None:
    assert OVERLAP == 0.5
    assert resolve("a1 b1 x1", ["a1 b1 c1"], normal_form) == "a1 b1 c1"  # 2 of 4
    assert resolve("a1 b1 x1 y1", ["a1 b1 c1"], normal_form) is None  # 2 of 5


def test_equal_spellings_of_one_action_are_ambiguous_only_if_they_differ() -> None:
    assert resolve("LOOK", ["look", "look"], normal_form) == "look"
    assert resolve("the look", ["look", "Look"], normal_form) is None


def test_an_open_action_space_takes_the_text_as_it_is() -> None:
    assert resolve(" search[The  Fridge] ", None, normal_form) == "search[The  Fridge]"
    assert resolve("  ", None, normal_form) is None
    assert resolve("look", [], normal_form) is None


@given(st.sampled_from(ADMISSIBLE), st.sampled_from([str.upper, str.title, lambda text: f" the {text}! "]))
def test_every_action_resolves_to_itself_however_it_is_dressed(action: str, dress: object) -> None:
    assert resolved(dress(action)) == action  # type: ignore[operator]  # a function of text


@given(st.text(max_size=60))
def test_the_result_is_an_action_or_nothing(written: str) -> None:
    assert resolved(written) in [*ADMISSIBLE, None]
