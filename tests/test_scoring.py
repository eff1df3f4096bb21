"""Signals: which prompts are scored, by whom, and that they are the engine's own numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from pivotopd.agent.prompting import HINT_TOKENS, Prompt, Prompter
from pivotopd.config import TinyStudent
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.methods.base import Needs, TargetTokens
from pivotopd.models.base import Nats, Request, Sampling, ScoreRequest
from pivotopd.models.checkpoint import make_policy
from pivotopd.models.tiny import build_model
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.records import Distribution, Label, Lesson, Signal, Turn, from_table, to_table
from pivotopd.scoring import RowDistributions, Scored, Signaller, distribution_records
from pivotopd.teacher.base import Candidate, Reading
from pivotopd.teacher.pivots import labels_of, lesson_of
from tests import play
from tests.test_recovery import episode, oracle_labels, recovered, recoverer

ALL = Needs(labels=True, recovery_depth=2, gold_hint=True, lesson=True)
LESSON = "look before you go"


def engine(seed: int) -> TransformersEngine:
    """A random model, sharpened so that a hint moves its probabilities clearly."""
    tokenizer = play.codec().tokenizer
    model = build_model(
        TinyStudent(layers=1, hidden=16, heads=2, kv_heads=1, intermediate=32), tokenizer, seed
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 8
    return TransformersEngine(make_policy(model, tokenizer))


@pytest.fixture(scope="module")
def policy() -> TransformersEngine:
    return engine(0)


@dataclass
class Counting:
    """A scorer that answers with its number, and keeps the requests."""

    value: float
    asked: list[ScoreRequest] = field(default_factory=list)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        self.asked += requests
        return [np.full(len(one.response_ids), self.value, np.float32) for one in requests]


@dataclass(frozen=True)
class Case:
    """Two episodes with their labels and the recovery rows of one."""

    rollout: list[Turn]
    recovery: list[Turn]
    labels: list[Label]
    lessons: list[Lesson]

    @property
    def rows(self) -> list[Turn]:
        return [*self.rollout, *self.recovery]


@pytest.fixture(scope="module")
def case() -> Case:
    lost = episode(play.lose(play.environment().tasks("train")[0], {3}, 8))
    won = episode(play.plan(play.environment().tasks("train")[1], {2, 4}), "won", 1)
    labels = oracle_labels(lost, won)
    recovery = recovered(recoverer(), labels, lost, won).turns
    lessons = [
        lesson_of(Reading((), LESSON), lost.episode, "t"),
        lesson_of(Reading((), unread="silence"), won.episode, "t"),
    ]
    return Case([*lost.turns, *won.turns], recovery, labels, lessons)


def scored(case: Case, needs: Needs = ALL, rows: Sequence[Turn] | None = None) -> tuple[Scored, Counting]:
    one = Counting(-1.0)
    return Signaller(play.prompter(), one, one, needs).score(
        rows or case.rows, case.labels, case.lessons
    ), one


def has(signals: Sequence[Signal], name: str) -> list[tuple[str, str, int]]:
    return [(one.source, one.episode, one.turn) for one in signals if getattr(one, name) is not None]


PIVOTS = [("rollout", "e", 3), ("rollout", "won", 2), ("rollout", "won", 4)]


def test_hints_are_scored_on_pivots_and_recoveries_and_lessons_on_the_rollout(case: Case) -> None:
    found, _ = scored(case)
    branch = [("recovery", row.episode, row.turn) for row in case.recovery]
    assert len(branch) == 6
    assert has(found.signals, "hinted_nats") == [*PIVOTS, *branch]
    assert has(found.signals, "lesson_nats") == [("rollout", "e", turn) for turn in range(8)]
    assert [(one.episode, one.turn, one.source, one.pivot_turn) for one in found.signals] == [
        (row.episode, row.turn, row.source, row.pivot_turn) for row in case.rows
    ]
    assert (found.hints_too_long, found.lessons_too_long) == (0, 0)
    assert from_table(Signal, to_table(Signal, found.signals), "here") == found.signals


@pytest.mark.parametrize(
    ("needs", "pivots", "lessons"),
    [(Needs(), 0, 0), (Needs(gold_hint=True), 3, 0), (Needs(lesson=True), 0, 8)],
)
def test_only_what_a_method_needs_is_scored_but_recoveries_always(
    case: Case, needs: Needs, pivots: int, lessons: int
) -> None:
    found, one = scored(case, needs)
    assert len(has(found.signals, "hinted_nats")) == pivots + 6
    assert len(has(found.signals, "lesson_nats")) == lessons
    assert len(one.asked) == len(case.rows) + pivots + 6 + lessons


def test_labels_that_are_not_pivotal_give_no_hint(case: Case) -> None:
    labels = [replace(one, pivotal=False, reason="agrees") for one in case.labels]
    found, _ = scored(replace(case, labels=labels))
    assert all(source == "recovery" for source, _, _ in has(found.signals, "hinted_nats"))
    assert len(has(found.signals, "lesson_nats")) == 8  # a lesson needs no pivot


def test_every_number_is_the_engines_own_under_the_right_prompt(
    case: Case, policy: TransformersEngine
) -> None:
    reference = engine(1)
    found = Signaller(play.prompter(), policy, reference, ALL).score(case.rows, case.labels, case.lessons)
    gold = {(one.episode, one.turn): one.gold_action for one in case.labels if one.pivotal}
    for row, signal in zip(case.rows, found.signals, strict=True):
        plain_text = play.codec().decode(row.prompt_ids)[0]
        prompts = {"plain_nats": (policy, plain_text), "reference_nats": (reference, plain_text)}
        hint = row.gold_action if row.source == "recovery" else gold.get((row.episode, row.turn))
        if hint:
            prompts["hinted_nats"] = (policy, f"{plain_text}\n<hint>{hint}")
        if row.source == "rollout" and row.episode == "e":
            task, _, rest = plain_text.partition("\n")
            prompts["lesson_nats"] = (policy, f"{task}\n<lesson> {LESSON}\n{rest}")
        for name in ("plain_nats", "reference_nats", "hinted_nats", "lesson_nats"):
            values = getattr(signal, name)
            if name not in prompts:
                assert values is None
                continue
            scorer, text = prompts[name]
            ids = play.codec().encode_prompt(text)
            (expected,) = scorer.score([ScoreRequest(ids, row.response_ids)])
            assert len(values) == len(row.response_ids)
            np.testing.assert_allclose(values, expected, atol=1e-4)
            if name in ("hinted_nats", "lesson_nats"):
                assert np.abs(np.array(values) - np.array(signal.plain_nats)).max() > 1e-3
    assert found.signals[0].plain_nats != found.signals[0].reference_nats


@pytest.mark.parametrize("width", [3, "all"])
def test_distributions_stand_beside_every_privileged_score(
    case: Case, policy: TransformersEngine, width: TargetTokens
) -> None:
    needs = replace(ALL, target_tokens=width)
    found = Signaller(play.prompter(), policy, policy, needs).score(case.rows, case.labels, case.lessons)
    usual = Signaller(play.prompter(), policy, policy, ALL).score(case.rows, case.labels, case.lessons)
    for one, other in zip(found.signals, usual.signals, strict=True):
        for name in ("plain_nats", "hinted_nats", "lesson_nats"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert (mine is None) == (theirs is None)
            if mine is not None:  # other rows beside them: the same up to rounding
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert usual.distributions == [RowDistributions()] * len(case.rows)
    size = len(play.codec().tokenizer) if width == "all" else width
    for row, signal, beside in zip(case.rows, found.signals, found.distributions, strict=True):
        assert beside.skill is None
        for nats, top in ((signal.hinted_nats, beside.hint), (signal.lesson_nats, beside.lesson)):
            assert (nats is None) == (top is None)
            if nats is None or top is None:
                continue
            assert top.ids.shape == (len(row.response_ids), size)
            for token, value, ids, values in zip(row.response_ids, nats, top.ids, top.nats, strict=True):
                if width == "all" or token in ids:
                    assert values[ids.tolist().index(token)] == value
                else:
                    assert value <= values[-1]


def test_distributions_are_stored_flat(case: Case, policy: TransformersEngine) -> None:
    needs = replace(ALL, target_tokens=3)
    found = Signaller(play.prompter(), policy, policy, needs).score(case.rows, case.labels, case.lessons)
    stored = from_table(Distribution, to_table(Distribution, distribution_records(case.rows, found)), "here")
    assert [one.text for one in stored].count("lesson") == 8
    assert [one.text for one in stored].count("hint") == len(PIVOTS) + 6
    kept = {(one.episode, one.turn, one.source, one.pivot_turn, one.text): one for one in stored}
    assert len(kept) == len(stored)
    for row, beside in zip(case.rows, found.distributions, strict=True):
        for text, top in (("hint", beside.hint), ("lesson", beside.lesson)):
            if top is not None:
                one = kept[row.episode, row.turn, row.source, row.pivot_turn, text]
                np.testing.assert_array_equal(np.reshape(one.ids, (-1, one.width)), top.ids)
                np.testing.assert_array_equal(np.reshape(one.nats, (-1, one.width)), top.nats)


def test_a_larger_model_scores_the_rollout_under_the_student_s_own_ids(case: Case) -> None:
    one, big = Counting(-1.0), Counting(-3.0)
    needs = Needs(labels=True, recovery_depth=2, larger_teacher=True)
    found = Signaller(play.prompter(), one, one, needs, big).score(case.rows, case.labels)
    assert [(ask.prompt_ids, ask.response_ids) for ask in big.asked] == [
        (row.prompt_ids, row.response_ids) for row in case.rollout
    ]
    assert has(found.signals, "teacher_nats") == [("rollout", row.episode, row.turn) for row in case.rollout]
    assert {value for signal in found.signals for value in signal.teacher_nats or ()} == {-3.0}
    assert found.teacher_tokens == sum(len(row.response_ids) for row in case.rollout)
    nothing = Signaller(play.prompter(), one, one, ALL, big).score(case.rows, case.labels, case.lessons)
    assert has(nothing.signals, "teacher_nats") == []
    assert nothing.teacher_tokens == 0
    with pytest.raises(ConfigError, match="needs a larger model"):
        Signaller(play.prompter(), one, one, needs).score(case.rows, case.labels)


def test_in_the_first_iteration_the_policy_is_its_own_reference(case: Case) -> None:
    one, other = Counting(-1.0), Counting(-2.0)
    found = Signaller(play.prompter(), one, one, Needs()).score(case.rollout, [])
    assert len(one.asked) == len(case.rollout)
    assert all(signal.reference_nats == signal.plain_nats for signal in found.signals)
    found = Signaller(play.prompter(), one, other, Needs()).score(case.rollout, [])
    assert [request.prompt_ids for request in other.asked] == [row.prompt_ids for row in case.rollout]
    assert {value for signal in found.signals for value in signal.reference_nats} == {-2.0}


def test_hints_and_lessons_that_do_not_fit_are_skipped_and_counted(case: Case) -> None:
    limit = max(len(row.prompt_ids) for row in case.rollout)
    tight = play.prompter(prompt_tokens=limit)
    long = "\u007f" * (limit + HINT_TOKENS)
    labels = [
        replace(one, gold_action=long if one.episode == "won" else one.gold_action) for one in case.labels
    ]
    lessons = [replace(one, lesson=long if one.episode == "e" else LESSON) for one in case.lessons]
    one = Counting(-1.0)
    found = Signaller(tight, one, one, ALL).score(case.rollout, labels, lessons)
    assert (found.hints_too_long, found.lessons_too_long) == (2, 8)
    assert has(found.signals, "hinted_nats") == [("rollout", "e", 3)]
    assert {episode for _, episode, _ in has(found.signals, "lesson_nats")} == {"won"}
    assert all(len(request.prompt_ids) <= limit + HINT_TOKENS for request in one.asked)


@dataclass
class Calls(Counting):
    """One that keeps how many requests each call had."""

    sizes: list[int] = field(default_factory=list)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        self.sizes.append(len(requests))
        return super().score(requests)


@pytest.mark.parametrize(("tokens", "parts"), [(1, [[0, 1, 2], [3], [4]]), (10_000, [[0, 1, 2, 3], [4]])])
def test_whole_groups_are_scored_in_calls_of_bounded_size(
    tokens: int, parts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pivotopd.scoring.PART_TOKENS", tokens)
    base = play.made_turn(0)
    rows = [replace(base, episode=name, group=name[0]) for name in ("a1", "a2", "a3", "b1")]
    branch = replace(base, episode="a1", group="a", source="recovery", hinted_prompt_ids=[1], pivot_turn=0)
    policy, reference = Calls(-1.0), Calls(-2.0)
    signaller = Signaller(play.prompter(), policy, reference, Needs())
    found = list(signaller.parts([*rows, branch], []))
    assert [list(one.rows) for one in found] == parts
    assert policy.sizes == [*map(len, parts[:-1]), 2]  # the recovery with its hint and without
    assert reference.sizes == list(map(len, parts))
    reference.sizes.clear()
    assert len(list(signaller.unlabelled(rows))) == len(parts) - 1
    assert reference.sizes == list(map(len, parts[:-1]))  # the very calls


def test_the_order_of_the_rows_does_not_matter(case: Case) -> None:
    rows = list(reversed(case.rows))
    found, _ = scored(case)
    assert list(reversed(scored(case, rows=rows)[0].signals)) == found.signals


@pytest.mark.parametrize("history", [0, 2])
def test_a_prompt_that_is_not_the_rows_own_is_never_hinted(case: Case, history: int) -> None:
    one = Counting(-1.0)
    other = Signaller(play.prompter(history=history), one, one, ALL)
    with pytest.raises(ArtifactError, match="cannot be rebuilt"):
        other.score(case.rollout, case.labels)
    other = Signaller(play.prompter(), one, one, ALL)
    with pytest.raises(ArtifactError, match="cannot be rebuilt"):
        other.score(case.rollout[1:], case.labels)  # an episode without its first turn


def test_the_sign_of_the_distillation_advantage(policy: TransformersEngine) -> None:
    """T7: its expected sum is KL under the hinted student, and minus another KL under the plain one."""
    task = play.environment().tasks("train")[0]
    seen = play.environment().open().reset(task, 0)
    prompter = play.prompter()
    plain = prompter.plain(play.environment().instruction(task), [], 0, seen.observation, seen.admissible)
    assert plain is not None
    hint = "go to fridge 1"
    hinted = prompter.hinted(plain, hint=hint)
    assert hinted is not None
    sampling, count = Sampling(1.0, 3), 96
    base = play.made_turn(
        0, prompt_ids=plain.ids, instruction=play.environment().instruction(task),
        observation=seen.observation, admissible=seen.admissible,
    )  # fmt: skip

    def rows(prompt: list[int], row: Turn) -> list[Turn]:
        requests = [Request(prompt, seed) for seed in range(count)]
        return [
            replace(row, episode=f"{row.source}/{seed}", response_ids=one.response_ids.tolist())
            for seed, one in enumerate(policy.generate(requests, sampling))
        ]

    branched = replace(base, source="recovery", hinted_prompt_ids=hinted, pivot_turn=0, depth=1)
    branch, recorded = rows(hinted, branched), rows(plain.ids, base)
    labels = [
        replace(label, episode=row.episode)
        for row in recorded
        for label in labels_of(pivot(hint), [row], play.environment().wording, "t", 5)
    ]
    found = Signaller(prompter, policy, policy, ALL).score([*branch, *recorded], labels)
    sums = np.array(
        [np.sum(np.subtract(one.hinted_nats or (), one.plain_nats)) for one in found.signals], np.float64
    )
    forward, reverse = sums[:count], sums[count:]
    error = max(forward.std(), reverse.std()) / np.sqrt(count)
    assert forward.mean() > max(0.05, error)
    assert reverse.mean() < -max(0.05, error)


def pivot(hint: str) -> Reading:
    return Reading((Candidate(0, hint, hint),))


# ---------------------------------------------------------------------- peers and actions


def group_of_three() -> list[Turn]:
    """Episodes a (lost), b and c (won) of one group, and d (won) of another; two turns each."""
    job = play.environment().tasks("train")[0]
    base = episode(play.lose(job, {1}, 2)).turns
    groups = {"a": "g", "b": "g", "c": "g", "d": "h"}
    return [replace(turn, episode=name, group=group) for name, group in groups.items() for turn in base]


def test_the_peer_is_the_first_winner_of_the_group_but_not_oneself() -> None:
    rows = group_of_three()
    rows = [replace(row, action=f"look {row.episode}{row.turn}") if row.turn == 1 else row for row in rows]
    one = Counting(-1.0)
    found = Signaller(play.prompter(), one, one, Needs(peer=True)).score(rows, [], winners=["c", "b", "d"])
    assert has(found.signals, "peer_nats") == [
        ("rollout", name, turn) for name in ("a", "b", "c") for turn in (0, 1)
    ]
    texts = [play.codec().decode(request.prompt_ids)[0] for request in one.asked]
    shown = [text for text in texts if "<lesson>" in text]
    assert len(texts) == len(rows) + len(shown)
    first = rows[0].action
    for text, peer in zip(shown, ["c", "c", "c", "c", "b", "b"], strict=True):
        assert f"\n<lesson> {first}; look {peer}1\n" in text
    assert found.peers_too_long == 0
    assert all(row.source == "rollout" for row in rows)


def test_equal_prompts_with_equal_lessons_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, built = group_of_three(), Counter[int]()
    rebuilt = Prompter.rebuilt

    def counted(self: Prompter, turns: Sequence[Turn], index: int) -> Prompt:
        built[index] += 1
        return rebuilt(self, turns, index)

    monkeypatch.setattr(Prompter, "rebuilt", counted)
    texts = {"a": LESSON, "b": LESSON, "c": LESSON, "d": "another one"}
    first = episode(play.lose(play.environment().tasks("train")[0], {1}, 2)).episode
    lessons = [lesson_of(Reading((), text), replace(first, episode=key), "t") for key, text in texts.items()]
    one = Counting(-1.0)
    found = Signaller(play.prompter(), one, one, Needs(lesson=True)).score(rows, [], lessons)
    assert len(has(found.signals, "lesson_nats")) == len(rows) == 8
    assert built == {0: 2, 1: 2}
    asked = [play.codec().decode(request.prompt_ids)[0] for request in one.asked]
    assert [sum(text in prompt for prompt in asked) for text in (LESSON, "another one")] == [6, 2]


@pytest.mark.parametrize("winners", [[], ["a"], ["d"]])
def test_without_a_peer_nothing_is_scored(winners: list[str]) -> None:
    rows = [row for row in group_of_three() if row.episode in ("a", "d")]
    one = Counting(-1.0)
    found = Signaller(play.prompter(), one, one, Needs(peer=True)).score(rows, [], winners=winners)
    assert has(found.signals, "peer_nats") == []
    assert len(one.asked) == len(rows)


def test_peers_that_do_not_fit_are_skipped_and_counted() -> None:
    rows = group_of_three()
    limit = max(len(row.prompt_ids) for row in rows)
    long = "\u007f" * (limit + HINT_TOKENS)
    rows = [replace(row, action=long) if (row.episode, row.turn) == ("b", 1) else row for row in rows]
    one = Counting(-1.0)
    found = Signaller(play.prompter(prompt_tokens=limit), one, one, Needs(peer=True)).score(
        rows, [], winners=["b"]
    )
    assert found.peers_too_long == 4
    assert has(found.signals, "peer_nats") == []


def test_actions_are_marked_only_for_methods_that_ask_and_only_in_the_rollout(case: Case) -> None:
    one = Counting(-1.0)
    found = Signaller(play.prompter(), one, one, Needs(action_span=True)).score(case.rows, case.labels)
    for row, signal in zip(case.rows, found.signals, strict=True):
        if row.source == "recovery":
            assert signal.action_mask is None
            continue
        assert signal.action_mask is not None
        inside = [token for token, kept in zip(row.response_ids, signal.action_mask, strict=True) if kept]
        assert play.codec().decode(inside)[0] == row.action
    assert all(signal.action_mask is None for signal in scored(case)[0].signals)


# ---------------------------------------------------------------------- skills


def test_rollout_rows_are_scored_with_their_skills_in_front(case: Case, policy: TransformersEngine) -> None:
    skills = {"e": ("open first", "look"), "won": ()}
    needs = Needs(skill=True)
    found = Signaller(play.prompter(), policy, policy, needs).score(case.rows, case.labels, skills=skills)
    assert has(found.signals, "skill_nats") == [("rollout", "e", turn) for turn in range(8)]
    for row, signal in zip(case.rows, found.signals, strict=True):
        if signal.skill_nats is not None:
            text = "<skill> open first\n<skill> look\n" + play.codec().decode(row.prompt_ids)[0]
            ids = play.codec().encode_prompt(text)
            (expected,) = policy.score([ScoreRequest(ids, row.response_ids)])
            np.testing.assert_allclose(signal.skill_nats, expected, atol=1e-4)
            assert np.abs(np.array(signal.skill_nats) - np.array(signal.plain_nats)).max() > 1e-3
    one = Counting(-1.0)
    other = Signaller(play.prompter(), one, one, Needs()).score(case.rollout, [], skills=skills)
    assert has(other.signals, "skill_nats") == []


def test_skills_that_do_not_fit_are_skipped_and_counted(case: Case) -> None:
    limit = max(len(row.prompt_ids) for row in case.rollout)
    long = "\u007f" * (limit + HINT_TOKENS)
    one = Counting(-1.0)
    signaller = Signaller(play.prompter(prompt_tokens=limit), one, one, Needs(skill=True))
    found = signaller.score(case.rollout, [], skills={"e": (long, "look"), "won": ("look", long)})
    assert found.skills_too_long == 8
    assert {episode for _, episode, _ in has(found.signals, "skill_nats")} == {"won"}
    assert all(len(request.prompt_ids) <= limit + HINT_TOKENS for request in one.asked)


def test_a_turn_has_its_own_skill_or_the_episode_s(case: Case, policy: TransformersEngine) -> None:
    steps = ((3, "open fridge 1"), (5, "look"), (99, "no such turn"))
    lessons = [
        replace(case.lessons[0], step_turns=[turn for turn, _ in steps], step_lessons=[s for _, s in steps])
    ]
    found = Signaller(play.prompter(), policy, policy, Needs(routed_skill=True)).score(case.rows, [], lessons)
    assert has(found.signals, "skill_nats") == [("rollout", "e", turn) for turn in range(8)]
    assert has(found.signals, "lesson_nats") == []
    for row, signal in zip(case.rows, found.signals, strict=True):
        if signal.skill_nats is None:
            continue
        text = play.codec().decode(row.prompt_ids)[0]
        task, _, rest = text.partition("\n")
        step = dict(steps).get(row.turn)
        shown = f"{text}\n<hint>{step}" if step else f"{task}\n<lesson> {LESSON}\n{rest}"
        (expected,) = policy.score([ScoreRequest(play.codec().encode_prompt(shown), row.response_ids)])
        np.testing.assert_allclose(signal.skill_nats, expected, atol=1e-4)
    long = "\u007f" * 5000
    found = Signaller(play.prompter(), policy, policy, Needs(routed_skill=True)).score(
        case.rollout, [], [replace(lessons[0], lesson=long)]
    )
    assert found.skills_too_long == 6
    assert [turn for _, _, turn in has(found.signals, "skill_nats")] == [3, 5]


def test_a_recovery_without_the_prompt_that_sampled_it_is_refused(case: Case) -> None:
    bare = replace(case.recovery[0], hinted_prompt_ids=None)
    with pytest.raises(ArtifactError, match="has no prompt with a hint"):
        Signaller(play.prompter(), Counting(1.0), Counting(2.0), ALL).score(
            [*case.rollout, bare], case.labels
        )
