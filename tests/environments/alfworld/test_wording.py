"""The student's text: prompts are functions of the view, privileged text shows, every reply can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld import native
from pivotopd.environments.alfworld.compact import place_here, rotated, short
from pivotopd.environments.alfworld.games import load_games
from pivotopd.environments.alfworld.problem import parse_problem
from pivotopd.environments.alfworld.vocabulary import OBJECTS, RECEPTACLES, kind_of
from pivotopd.environments.alfworld.wording import PromptForm, make_wording, phrases
from pivotopd.environments.base import Reply, View
from pivotopd.models.codec import TokenizerCodec
from pivotopd.models.tiny import build_tokenizer

FORMS: tuple[PromptForm, ...] = ("full", "compact")

ADMISSIBLE = (
    "examine cabinet 2", "go to cabinet 1", "go to cabinet 10", "go to fridge 1", "help", "inventory", "look",
    "open cabinet 2",
)  # fmt: skip
VIEW = View(
    instruction="put a clean mug in fridge.",
    history=(
        (
            "You are in the middle of a room. Looking quickly around you, you see a cabinet 1.",
            "go to cabinet 1",
        ),
        ("You arrive at cabinet 1. On the cabinet 1, you see a mug 2, and a mug 1.", "go to cabinet 2"),
    ),
    turn=4,
    observation="You arrive at cabinet 2. The cabinet 2 is closed.",
    admissible=ADMISSIBLE,
)
TEXT = st.text(max_size=60)
MARKS = (
    "<hint>",
    "<lesson>",
    "<skill>",
    "Skills that earlier play in this household taught:",
    "A reasonable approach at this step is:",
    "What earlier attempts at this task taught:",
)
PLAYED = st.one_of(
    TEXT, st.sampled_from(MARKS), st.builds("{}{}{}".format, TEXT, st.sampled_from(MARKS), TEXT)
)
VIEWS = st.builds(
    View,
    instruction=PLAYED,
    history=st.lists(st.tuples(PLAYED, PLAYED), max_size=4).map(tuple),
    turn=st.integers(0, 30),
    observation=PLAYED,
    admissible=st.none() | st.lists(TEXT, max_size=6).map(lambda actions: tuple(sorted(set(actions)))),
)

REPLIES = [
    ("<think>a</think><action>go to desk 1</action>", Reply("go to desk 1", True, True, "a")),
    ("<THINK>Why</THINK>\n<ACTION> Go To Desk 1 </ACTION>", Reply("go to desk 1", True, True, "why")),
    ("<think>a</think><action>x</action><action>y</action>", Reply("x", True, True, "a")),
    ("<action>look</action>", Reply("look", True, False, "")),
    ("<think>a<action>look</action>", Reply("look", True, False, "")),
    ("a</think><action>look</action>", Reply("look", True, False, "")),
    ("<think>\u53bb</think><action>look</action>", Reply("look", True, False, "\u53bb")),
    ("<think>\ud55c</think><action>look</action>", Reply("look", True, False, "\ud55c")),
    ("<think>caf\u00e9</think><action>look</action>", Reply("look", True, True, "caf\u00e9")),
    ("<think>a</think>" + "x" * 40, Reply("x" * 30, False, False, "a")),
    ("<think>so</think><action>look", Reply("<think>so</think><action>look", False, False, "so")),
    ("<think>also</think><action>look", Reply("think>also</think><action>look", False, False, "also")),
    ("a</think>b<think><action>look</action>", Reply("look", True, True, "")),
    ("</action><action>look</action>", Reply("look", True, False, "")),
    ("", Reply("", False, False, "")),
    ("<think>a</think><action></action>", Reply("ink>a</think><action></action>", False, False, "a")),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("response", "reply"), REPLIES)
def test_reply_rules(form: PromptForm, response: str, reply: Reply) -> None:
    assert make_wording(form).parse(response) == reply


@given(st.text())
def test_every_text_gives_a_reply(response: str) -> None:
    reply = make_wording("full").parse(response)
    assert reply.committed or not reply.valid
    assert reply.committed == ("<action>" in response.lower() and _closes(response.lower()))
    if not reply.committed:
        assert len(reply.action) <= 30
        assert response.lower().rstrip().endswith(reply.action)


def _closes(text: str) -> bool:
    return "</action>" in text.split("<action>", 1)[1]


def test_actions_are_compared_without_case_and_extra_blanks() -> None:
    assert make_wording("compact").normal_form("  Go  TO\tdesk 1 ") == "go to desk 1"


@pytest.mark.parametrize(
    ("response", "leaks"),
    [
        ("The hint says so", True),
        ("as suggested, open it", True),
        ("a good SUGGESTION", True),
        ("the provided action is fine", True),
        ("the given  approach", True),
        ("A reasonable approach at this step is to look", True),
        ("I was told to look", True),
        ("the instruction above", True),
        ("the chintz sofa", False),
        ("a reasonable approach would be to look", False),
        ("given the mug, look", False),
    ],
)
def test_leaks(response: str, leaks: bool) -> None:
    assert make_wording("full").leaks(response) is leaks


@settings(max_examples=300)
@given(VIEWS, st.sampled_from(FORMS), st.booleans(), st.booleans())
def test_privileged_text_shows_if_and_only_if_there_is_some(
    view: View, form: PromptForm, hint: bool, lesson: bool
) -> None:
    wording = make_wording(form)
    assert not wording.privileged(wording.prompt(view))
    helped = replace(view, hint="look" if hint else None, lesson="Look first." if lesson else None)
    assert wording.privileged(wording.prompt(helped)) == (hint or lesson)


@given(VIEWS, st.sampled_from(FORMS), st.lists(PLAYED, min_size=1, max_size=3), st.booleans())
def test_skills_are_privileged_unless_they_are_allowed(
    view: View, form: PromptForm, skills: list[str], hint: bool
) -> None:
    wording = make_wording(form)
    shown = wording.prompt(replace(view, skills=tuple(skills), hint="look" if hint else None))
    assert wording.privileged(shown)
    assert wording.privileged(shown, skills_allowed=True) == hint


@pytest.mark.parametrize("form", FORMS)
def test_skills_stand_in_front_and_change_nothing_behind_them(form: PromptForm) -> None:
    wording = make_wording(form)
    for view in (VIEW, replace(VIEW, turn=0, history=())):
        shown = wording.prompt(replace(view, skills=("Open first.", "Look.")))
        assert shown.endswith(wording.prompt(view))
        front = shown.removesuffix(wording.prompt(view))
        assert front.index("Open first.") < front.index("Look.")


@pytest.mark.parametrize("form", FORMS)
def test_hint_and_lesson_only_add_to_the_prompt(form: PromptForm) -> None:
    wording = make_wording(form)
    plain = wording.prompt(VIEW)
    for helped in (replace(VIEW, hint="open cabinet 2"), replace(VIEW, lesson="Search closed places.")):
        lines = wording.prompt(helped).splitlines()
        assert [line for line in plain.splitlines() if line not in lines] == []
        assert len(lines) > len(plain.splitlines())


def test_full_prompt_of_a_later_turn() -> None:
    helped = replace(VIEW, hint="open cabinet 2", lesson="Search closed places.")
    prompt = make_wording("full").prompt(helped)
    parts = [
        "Your task is to: put a clean mug in fridge.",
        "Search closed places.",
        "you have taken 4 step(s)",
        "[Observation 3: 'You are in the middle of a room. Looking quickly around you, you see a ",
        "cabinet 1.', Action 3: 'go to cabinet 1']",
        "Action 4: 'go to cabinet 2']",
        "now at step 5",
        "Your current observation is: You arrive at cabinet 2.",
        "'examine cabinet 2'",
        "A reasonable approach at this step is: open cabinet 2",
        "Now it's your turn",
        "<think>",
        "<action>",
    ]
    places = [prompt.index(part) for part in parts]
    assert places == sorted(places)
    assert "'help'" not in prompt


def test_full_prompt_of_the_first_turn_has_the_task_in_the_observation() -> None:
    first = replace(
        VIEW, turn=0, history=(), observation="Room.\n\nYour task is to: put a clean mug in fridge."
    )
    prompt = make_wording("full").prompt(replace(first, lesson="Look."))
    assert prompt.count("put a clean mug in fridge.") == 1
    assert (
        prompt.index("put a clean mug in fridge.")
        < prompt.index("Look.")
        < prompt.index("'examine cabinet 2'")
    )
    assert "Observation 1" not in prompt


def test_compact_prompt() -> None:
    assert make_wording("compact").prompt(
        replace(VIEW, hint="open cabinet 2", lesson="Look.")
    ).splitlines() == [
        "put a clean mug in fridge.",
        "<lesson> Look.",
        "- room > go to cabinet 1",
        "- at cabinet 1: mug 2 mug 1 > go to cabinet 2",
        "now at cabinet 2: closed",
        "here: cabinet 2",
        "places: cabinet 10 fridge 1 cabinet 1",
        "do: look; inventory; examine cabinet 2; open cabinet 2",
        "<hint>open cabinet 2",
    ]


def test_objects_to_take_are_listed_together() -> None:
    admissible = ("go to bed 1", "take pen 1 from desk 1", "take pen 2 from desk 1", "take pen 3 from desk 2")
    lines = make_wording("compact").prompt(replace(VIEW, admissible=admissible)).splitlines()
    assert lines[-1] == "do: take pen 1 pen 2 from desk 1; take pen 3 from desk 2"


def test_an_open_action_space_lists_nothing() -> None:
    for form in FORMS:
        prompt = make_wording(form).prompt(replace(VIEW, admissible=None))
        assert "places:" not in prompt
        assert "admissible actions in this situation" not in prompt


@pytest.mark.parametrize(
    ("observation", "told"),
    [
        ("You open the drawer 1. The drawer 1 is open. In it, you see a pen 1.", " at drawer 1: pen 1"),
        ("The drawer 1 is open. In it, you see nothing.", " at drawer 1: nothing"),
        ("You arrive at loc 12. On the desk 1, you see a pen 2, and a pen 1.", " at desk 1: pen 2 pen 1"),
        ("You pick up the pen 1 from the desk 1.", " got pen 1"),
        ("You move the pen 1 to the desk 1.", " left pen 1"),
        ("You put the pen 1 in/on the desk 1.", " left pen 1"),
        ("You heat the egg 1 using the microwave 1.", " did heat egg 1"),
        ("Nothing happens.", " no effect"),
        ("Something new.", " Something new."),
    ],
)
def test_short_observations(observation: str, told: str) -> None:
    assert short(observation) == told


def test_the_walk_starts_after_the_current_place() -> None:
    actions = tuple(f"go to drawer {number}" for number in (1, 10, 2, 4))
    assert rotated(actions) == ["drawer 1", "drawer 2", "drawer 4", "drawer 10"]
    assert rotated((*actions, "examine drawer 3")) == ["drawer 4", "drawer 10", "drawer 1", "drawer 2"]
    assert place_here((*actions, "examine drawer 3", "examine mug 1")) == "drawer 3"
    assert place_here((*actions, "examine mug 1")) is None


@given(st.permutations(ADMISSIBLE))
def test_the_walk_does_not_depend_on_the_order_of_the_actions(actions: list[str]) -> None:
    assert rotated(tuple(actions)) == ["cabinet 10", "fridge 1", "cabinet 1"]


def test_phrases_make_a_tokenizer_in_which_names_are_one_token() -> None:
    known = phrases()
    assert len(known) == len(set(known))
    codec = TokenizerCodec(build_tokenizer(known))
    framed = len(codec.encode_prompt(""))
    for text in (" sinkbasin 1", " butterknife 3", "go to", "\n<hint>", "</think><action>"):
        assert len(codec.encode_prompt(text)) == framed + 1
    text = "caf\u00e9 \u53bb <hint> mug 99"
    assert codec.decode(codec.encode_response(text)) == (text, False)


def test_both_prompts_serve_official_games(shared_data: Path) -> None:
    codec = TokenizerCodec(build_tokenizer(phrases()))
    for game in load_games(shared_data / "alfworld" / "valid_seen.parquet")[::20]:
        world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        names = {kind_of(world.names[receptacle]) for receptacle in world.receptacles}
        assert names <= RECEPTACLES
        assert {
            kind_of(world.names[thing]) for thing in world.pickupable & world.object_type.keys()
        } <= OBJECTS
        view = View(world.sentence, (), 0, native.reset_text(world), native.admissible(world, world.start))
        for form in FORMS:
            wording = make_wording(form)
            assert not wording.privileged(wording.prompt(view))
        assert rotated(view.admissible or ()) != []
        assert len(codec.encode_prompt(make_wording("compact").prompt(view))) < 120
