"""The tokens of an action, against a count of every prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.agent.action_tokens import action_mask
from pivotopd.environments.alfworld.wording import make_wording
from tests import play

WORDING = make_wording("full")


def mask_of(text: str) -> list[bool]:
    ids = play.codec().encode_response(text)
    return [bool(inside) for inside in action_mask(ids, WORDING, play.codec())]


def by_every_prefix(ids: list[int]) -> list[bool]:
    """The definition: a token is inside where what it writes, or the character it helps to write, is."""
    text = play.codec().decode(ids)[0]
    span = WORDING.action_span(text)
    if span is None:
        return [False] * len(ids)
    found, before = [], 0
    for count in range(1, len(ids) + 1):
        prefix = play.codec().decode(ids[:count])[0]
        after = next((i for i, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), None)
        after = min(len(prefix), len(text)) if after is None else after
        found.append(before < span[1] and max(after, before + 1) > span[0])
        before = after
    return found


@pytest.mark.parametrize("form", ["full", "compact"])
def test_only_the_action_s_tokens_are_inside(form: str) -> None:
    text = play.reply("go to fridge 1", "want apple 1; go")
    ids = play.codec().encode_response(text)
    mask = action_mask(ids, make_wording(form), play.codec())  # type: ignore[arg-type]  # both forms
    inside = play.codec().decode([token for token, kept in zip(ids, mask, strict=True) if kept])[0]
    assert inside == "go to fridge 1"
    assert mask.dtype == np.bool_
    assert not mask[-1], "the end token is no action"


@pytest.mark.parametrize(
    "text",
    ["go to fridge 1", "<action></action>", "<action>  </action>", "<action>look", "look</action>", ""],
)
def test_without_a_committed_action_nothing_is_inside(text: str) -> None:
    assert not any(mask_of(text))


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("<action>look</action>", "look"),
        ("a <Action>\n Look \n</ACTION> b", "Look"),
        ("<action>one</action><action>two</action>", "one"),
        ("</action><action>é ü</action>", "é ü"),
        ("İİ<action>x</action>", "x"),
    ],
)
def test_the_span_is_the_first_committed_action(text: str, span: str) -> None:
    found = WORDING.action_span(text)
    assert found is not None
    assert text[slice(*found)] == span
    if "İ" not in text:  # lower-casing makes two characters of it
        assert WORDING.parse(text).action == span.lower()


@given(
    st.text(alphabet="ab é漢🙂<>", max_size=12),
    st.text(alphabet="go é漢🙂1", max_size=12),
    st.text(max_size=4),
)
@settings(deadline=None)
def test_it_is_the_definition_for_any_text(thought: str, action: str, rest: str) -> None:
    ids = play.codec().encode_response(f"<think>{thought}</think><action>{action}</action>{rest}")
    assert action_mask(ids, WORDING, play.codec()).tolist() == by_every_prefix(ids)


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(0, 40))
@settings(deadline=None)
def test_it_is_the_definition_for_any_sampled_ids(noise: list[int], where: int) -> None:
    size = len(play.codec().tokenizer)
    action = play.codec().encode_response("<action>open fridge 1</action>")[:-1]
    ids = [token % size for token in noise]
    ids = [*ids[:where], *action, *ids[where:]]
    assert action_mask(ids, WORDING, play.codec()).tolist() == by_every_prefix(ids)
