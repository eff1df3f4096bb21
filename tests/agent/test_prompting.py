"""Prompts: the window, the limit, and privileged text that never displaces the base part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.agent.prompting import HINT_TOKENS
from pivotopd.environments.alfworld.wording import PromptForm, make_wording
from pivotopd.environments.base import View
from pivotopd.errors import ArtifactError
from tests import play

TASK = "Your task is to: put some mug on shelf."
SEEN = "You arrive at shelf 1. On the shelf 1, you see a mug 1."
ACTIONS = ("go to fridge 1", "look", "take mug 1 from shelf 1")
FORMS: list[PromptForm] = ["compact", "full"]

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
pairs = st.lists(st.tuples(words, words), max_size=7)


@settings(max_examples=60, deadline=None)
@given(pairs, st.integers(0, 6), st.integers(-2, 120), st.sampled_from(FORMS))
def test_the_longest_window_that_fits_is_shown(
    past: list[tuple[str, str]], history: int, room: int, form: PromptForm
) -> None:
    turn, wording = len(past), make_wording(form)
    past = [(f"{number} {seen}", act) for number, (seen, act) in enumerate(past)]

    def ids(count: int) -> list[int]:
        view = View(TASK, tuple(past[turn - count :]), turn, SEEN, ACTIONS)
        return play.codec().encode_prompt(wording.prompt(view))

    limit = len(ids(0)) + room
    prompter = play.prompter(form, history=history, prompt_tokens=limit)
    fitting = [count for count in range(min(history, turn) + 1) if len(ids(count)) <= limit]
    prompt = prompter.plain(TASK, past, turn, SEEN, ACTIONS)
    if not fitting:
        assert prompt is None
        return
    assert prompt is not None
    kept = len(prompt.view.history)
    assert prompt.ids == ids(kept)
    assert len(prompt.ids) <= limit
    assert prompt.view == View(TASK, tuple(past[turn - kept :]), turn, SEEN, ACTIONS)
    if turn:  # in the full form the first turn shows no history at all, so any window fits
        assert kept == max(fitting)


@pytest.mark.parametrize("form", FORMS)
def test_privileged_text_is_added_to_the_same_prompt(form: PromptForm) -> None:
    past = [("You are here.", "look"), ("You see.", "go to shelf 1")]
    whole = play.prompter(form)
    plain = whole.plain(TASK, past, 2, SEEN, ACTIONS)
    assert plain is not None
    assert not whole.wording.privileged(whole.wording.prompt(plain.view))
    for hint, lesson in (("look", None), (None, "Look first."), ("look", "Look first.")):
        ids = whole.hinted(plain, hint=hint, lesson=lesson)
        text = whole.wording.prompt(replace(plain.view, hint=hint, lesson=lesson))
        assert ids == play.codec().encode_prompt(text)
        assert whole.wording.privileged(text)
        assert len(ids) > len(plain.ids)
    assert whole.hinted(plain) == plain.ids


@pytest.mark.parametrize("form", FORMS)
def test_a_hint_may_pass_the_limit_by_so_much_and_costs_no_history(form: PromptForm) -> None:
    past = [("You are here.", "look"), ("You see.", "go to shelf 1")]
    whole = play.prompter(form)
    plain = whole.plain(TASK, past, 2, SEEN, ACTIONS)
    assert plain is not None
    exact = play.prompter(form, prompt_tokens=len(plain.ids))
    same = exact.plain(TASK, past, 2, SEEN, ACTIONS)
    assert same == plain
    least = len(exact.hinted(same, lesson="x") or ()) - 1
    room = len(plain.ids) + HINT_TOKENS - least
    ids = exact.hinted(same, lesson="\u007f" * room)  # one token a byte
    assert ids is not None
    assert len(ids) == len(plain.ids) + HINT_TOKENS
    assert exact.hinted(same, lesson="\u007f" * (room + 1)) is None


def test_no_history_and_open_actions() -> None:
    prompter = play.prompter(history=0)
    prompt = prompter.plain(TASK, [("seen", "done")], 1, SEEN, None)
    assert prompt is not None
    assert prompt.view == View(TASK, (), 1, SEEN, None)


def test_a_recorded_turn_gives_its_prompt_again_or_is_refused() -> None:
    task = play.environment().tasks("valid")[0]
    (one,) = play.player(play.wander).play(play.jobs_of([task]))
    assert len(one.turns) > play.HISTORY
    for index, turn in enumerate(one.turns):
        prompt = play.prompter().rebuilt(one.turns, index)
        assert prompt.ids == turn.prompt_ids
        assert prompt.view.observation == turn.observation
        assert len(prompt.view.history) == min(index, play.HISTORY)
    with pytest.raises(ArtifactError, match=rf"turn {index} cannot be rebuilt"):
        play.prompter(history=play.HISTORY - 1).rebuilt(one.turns, index)


@pytest.mark.parametrize("form", FORMS)
def test_skills_that_do_not_fit_are_left_out_from_the_last_and_cost_no_history(form: PromptForm) -> None:
    past = [("You are here.", "look"), ("You see.", "go to shelf 1")]
    plain = play.prompter(form).plain(TASK, past, 2, SEEN, ACTIONS)
    assert plain is not None
    exact = play.prompter(form, prompt_tokens=len(plain.ids))
    large = "\u007f" * (HINT_TOKENS // 2)  # one token a byte
    for skills, kept in (
        (("open",), 1), (("open", large), 2), (("open", large, large, "look"), 2), ((large, large), 1),
        ((large + large, "look"), 0), ((), 0),
    ):  # fmt: skip
        shown = exact.plain(TASK, past, 2, SEEN, ACTIONS, skills)
        assert shown is not None
        assert len(shown.view.skills) == kept
        assert shown.view == replace(plain.view, skills=skills[: len(shown.view.skills)])
        assert len(shown.ids) <= len(plain.ids) + HINT_TOKENS
        assert exact.skilled(plain, skills) == (shown if shown.view.skills else None)


def test_a_turn_that_was_played_with_skills_is_not_rebuilt_without_them() -> None:
    task = play.environment().tasks("valid")[0]
    (job,) = play.jobs_of([task])
    (one,) = play.player(play.wander).play([replace(job, skills=("open", "look"))])
    (without,) = play.player(play.wander).play([job])
    text = play.codec().decode(one.turns[0].prompt_ids)[0]
    assert text == "<skill> open\n<skill> look\n" + play.codec().decode(without.turns[0].prompt_ids)[0]
    with pytest.raises(ArtifactError, match="turn 0 cannot be rebuilt"):
        play.prompter().rebuilt(one.turns, 0)
