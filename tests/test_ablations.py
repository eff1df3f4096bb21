"""PivotOPD's ablations: random pivotal turns, hints without an action, reverse-KL recovery."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pivotopd.ablations import at_random_turns
from pivotopd.environments.alfworld.wording import PromptForm, make_wording
from pivotopd.environments.base import View
from pivotopd.ledger import Counts
from pivotopd.records import Label, Turn
from pivotopd.reverse_recovery import ReverseRecoverer
from pivotopd.teacher.base import Transcript
from tests import play
from tests.test_recovery import TASKS, Told, episode, fates, pivot_at, recovered, recoverer, used

PIVOTS = (1, 4, 6)


@pytest.fixture(scope="module")
def lost() -> Transcript:
    return episode(play.lose(TASKS[0], {3}, 8))


@pytest.fixture(scope="module")
def labels(lost: Transcript) -> list[Label]:
    """Three pivotal labels with gold texts of their own, and one that agrees."""
    pivotal = [replace(pivot_at(turn, lost), gold_action=f"gold {turn}") for turn in PIVOTS]
    agrees = replace(pivot_at(2, lost), pivotal=False, reason="agrees")
    return [pivotal[2], agrees, *pivotal[:2]]


# ---------------------------------------------------------------------- random pivotal turns


def moved(labels: list[Label], seed: int, iteration: int = 0, turns: int = 8) -> list[Label]:
    return at_random_turns(labels, {"e": turns}, seed, iteration)


def test_number_and_gold_texts_stay_and_other_labels_too(labels: list[Label]) -> None:
    for seed in range(50):
        found = moved(labels, seed)
        pivotal = [one for one in found if one.pivotal]
        places = [one.turn for one in pivotal]
        assert places == sorted(set(places))
        assert all(0 <= place < 8 for place in places)
        assert [one.gold_action for one in pivotal] == ["gold 1", "gold 4", "gold 6"]
        assert [one for one in found if not one.pivotal] == [labels[1]]


def test_turns_are_uniform_and_drawn_from_run_iteration_and_episode(labels: list[Label]) -> None:
    drawn = Counter(one.turn for seed in range(800) for one in moved(labels, seed) if one.pivotal)
    assert set(drawn) == set(range(8))
    assert all(abs(count - 300) < 75 for count in drawn.values()), "5.5 standard deviations of 13.7"
    assert moved(labels, 3) == moved(list(reversed(labels)), 3)
    assert moved(labels, 3, 0) != moved(labels, 3, 1)
    other = [replace(one, episode="f") for one in labels]
    both = at_random_turns([*labels, *other], {"e": 8, "f": 8}, 3, 0)
    of_e, of_f = ([one.turn for one in both if one.episode == name] for name in ("e", "f"))
    assert set(of_e) == {one.turn for one in moved(labels, 3)}
    assert of_f != of_e


def test_as_many_hints_as_turns_fill_the_episode(labels: list[Label]) -> None:
    assert [one.turn for one in moved(labels, 0, turns=3) if one.pivotal] == [0, 1, 2]


# ---------------------------------------------------------------------- hints without an action


@pytest.mark.parametrize("form", ["full", "compact"])
def test_a_reflection_names_no_action_and_is_privileged(form: PromptForm) -> None:
    wording = make_wording(form)
    view = View("Your task is to: do it.", (), 3, "You see it.", ("look", "go to fridge 1"))
    plain, hinted = wording.prompt(view), wording.prompt(replace(view, hint="go to sofa 1"))
    reflecting = wording.prompt(replace(view, hint=""))
    assert "sofa" in hinted
    assert "sofa" not in reflecting
    assert reflecting != plain
    assert wording.privileged(reflecting)
    assert not wording.privileged(plain)
    copied = replace(view, observation=reflecting)
    assert not wording.privileged(wording.prompt(copied)), "played text cannot look privileged"


@pytest.mark.parametrize("form", ["full", "compact"])
def test_a_prompter_that_reflects_hides_the_action_of_every_hint(form: PromptForm) -> None:
    plain = replace(play.prompter(form), hint_form="reflection")
    prompt = plain.plain("Your task is to: do it.", [], 0, "You see it.", ("look",))
    assert prompt is not None
    ids = plain.hinted(prompt, hint="go to sofa 1")
    assert ids is not None
    assert ids == plain.codec.encode_prompt(plain.wording.prompt(replace(prompt.view, hint="")))
    lesson = plain.hinted(prompt, lesson="go to sofa 1")
    assert lesson is not None
    assert "sofa" in plain.codec.decode(lesson)[0], "lessons stay as they are"


def test_recovery_by_reflection_still_asks_the_teacher(lost: Transcript) -> None:
    told = Told(lambda query: "go to sofa 1")

    def answer(text: str, seed: int) -> str:
        assert text.endswith("\n<hint>")
        return play.reply("look", "want")

    one = recoverer(answer, teacher=told, prompter=replace(play.prompter(), hint_form="reflection"), depth=1)
    result = recovered(one, [pivot_at(3, lost)], lost)
    assert [(row.action, row.gold_action) for row in result.turns] == [("look", "go to sofa 1")]
    assert len(told.queries) == 1


# ---------------------------------------------------------------------- reverse-KL recovery


def reverse(**changes: object) -> ReverseRecoverer:
    made = recoverer(play.refuse, **changes)
    return ReverseRecoverer(**{name: getattr(made, name) for name in made.__dataclass_fields__})


def text_of(ids: object) -> str:
    return play.codec().decode(list(ids))[0]  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rows_are_the_recorded_turns_with_the_hints_of_their_own_contexts(
    lost: Transcript, depth: int
) -> None:
    told = Told(lambda query: f"go to shelf {query.view.turn}")
    one = reverse(teacher=told, depth=depth)
    result = recovered(one, [pivot_at(3, lost)], lost)
    assert fates(result) == [("e", 3, depth, "depth")]
    for k, row in enumerate(result.turns, start=1):
        recorded: Turn = lost.turns[3 + k]
        assert (row.source, row.turn, row.pivot_turn, row.depth) == ("recovery", 3 + k, 3, k)
        assert row.response_ids == recorded.response_ids
        assert row.prompt_ids == recorded.prompt_ids
        assert row.gold_action == f"go to shelf {3 + k}"
        assert text_of(row.hinted_prompt_ids) == f"{text_of(row.prompt_ids)}\n<hint>{row.gold_action}"
    assert [query.view.turn for query in told.queries] == [3 + k for k in range(1, depth + 1)]
    assert [query.snapshot for query in told.queries] == [
        lost.turns[3 + k].snapshot for k in range(1, depth + 1)
    ]
    assert used(one) == Counts()


def test_a_reverse_chain_ends_with_its_episode_and_without_advice(lost: Transcript) -> None:
    last = len(lost.turns) - 1
    one = reverse(teacher=Told(lambda query: "look"), depth=3)
    result = recovered(one, [pivot_at(last - 1, lost), pivot_at(last, lost)], lost)
    assert fates(result) == [("e", last - 1, 1, "episode_over"), ("e", last, 0, "episode_over")]
    silent = reverse(teacher=Told(lambda query: None), depth=2)
    assert fates(recovered(silent, [pivot_at(0, lost)], lost)) == [("e", 0, 0, "unresolved")]


def test_a_reverse_chain_leaves_out_a_cut_response(lost: Transcript) -> None:
    cut = replace(lost, turns=[replace(turn, finish_reason="length") if turn.turn == 5 else turn
                               for turn in lost.turns])  # fmt: skip
    result = recovered(reverse(teacher=Told(lambda query: "look"), depth=3), [pivot_at(3, cut)], cut)
    assert fates(result) == [("e", 3, 1, "truncated_response")]
