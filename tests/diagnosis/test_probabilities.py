"""Probabilities of an action: shares counted by hand, log-probabilities summed by hand, a real model."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.config import TinyStudent
from pivotopd.diagnosis.action_scores import action_tokens, with_action
from pivotopd.diagnosis.probabilities import (
    ActionShare,
    Context,
    ask,
    change_of,
    context_of,
    summarise,
    wilson,
)
from pivotopd.errors import ArtifactError
from pivotopd.models.base import Completion, Nats, Sampling, ScoreRequest
from pivotopd.models.checkpoint import make_policy
from pivotopd.models.tiny import build_model
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.records import from_table, to_table
from pivotopd.records_probes import ActionProbability
from pivotopd.rollout import Job, Origin
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Transcript
from tests import play

TASKS = tuple(play.environment().tasks("valid"))
ORIGIN = Origin("test", 3, "sha256:p", "sha256:d")
WORDING = play.environment().wording


def lost(name: str, task_index: int, mistake: int) -> Transcript:
    task = TASKS[task_index]
    job = Job(name, task, name, 0, task_index)
    (one,) = play.player(
        play.script({job.seed: play.lose(task, {mistake}, mistake + 3)}), max_turns=mistake + 3
    ).play([job])
    return play.transcript(task, one)


@pytest.fixture(scope="module")
def contexts() -> list[Context]:
    listed = [("a", 0, 3), ("b", 1, 2), ("c", 2, 4)]
    return [context_of(play.environment(), lost(name, task, turn), turn) for name, task, turn in listed]


class Engine(play.Scripted):
    """Answers as scripted, and scores every token with minus its id, in thousandths."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        return [(-np.array(request.response_ids) / 1000).astype(np.float32) for request in requests]


def asked(
    contexts: Sequence[Context], answer: play.Answer, samples: int = 4, seed: int = 0
) -> list[ActionProbability]:
    return ask(
        contexts,
        Engine(answer),
        play.prompter(),
        samples=samples,
        sampling=Sampling(1.0, 32),
        seed=seed,
        origin=ORIGIN,
    )


# ---------------------------------------------------------------------- contexts


def test_a_context_knows_the_oracles_actions_with_and_without_stored_states(contexts: list[Context]) -> None:
    for context in contexts:
        env = play.environment().open()
        env.reset(context.transcript.task, 0)
        for turn in context.transcript.turns[: context.turn]:
            env.step(turn.action)
        state = play.dumped(env)
        oracle = play.environment().oracle(context.transcript.task)
        assert context.best == oracle.best_actions(state, None)
        assert context.oracle_action == context.best[0]
        assert context.row.action not in context.best
        bare = replace(
            context.transcript, turns=[replace(turn, snapshot=None) for turn in context.transcript.turns]
        )
        assert context_of(play.environment(), bare, context.turn).best == context.best


# ---------------------------------------------------------------------- sampled shares


def test_shares_are_counted_by_committed_action(contexts: list[Context]) -> None:
    (context,) = contexts[:1]
    mistake, oracle = context.row.action, context.best[0]
    said: list[str | Completion] = [
        play.reply(mistake), play.reply(f"  {mistake.upper()} ", "other thoughts"), play.reply(oracle),
        play.reply("look"), f"I would {mistake}", play.completion(f"<think>{oracle}", 1, cut=True),
    ]  # fmt: skip
    names = [seed_of("action probability", 7, "a", context.turn, sample) for sample in range(6)]
    table = dict(zip(names, said, strict=True))
    (row,) = asked([context], lambda text, seed: table[seed], samples=6, seed=7)
    assert (row.samples, row.mistakes_drawn, row.oracle_drawn, row.best_drawn) == (6, 2, 1, 1)
    assert (row.mistake, row.oracle_action, row.episode, row.turn) == (mistake, oracle, "a", context.turn)
    assert (row.policy, row.iteration, row.temperature) == ("sha256:p", 3, 1.0)
    assert from_table(ActionProbability, to_table(ActionProbability, [row]), "here") == [row]


def test_any_best_action_counts_as_best(contexts: list[Context]) -> None:
    context = replace(contexts[0], best=(contexts[0].best[0], "look"))
    (row,) = asked([context], lambda text, seed: play.reply("look"))
    assert (row.oracle_drawn, row.best_drawn, row.mistakes_drawn) == (0, 4, 0)


def test_a_mistake_without_an_action_is_repeated_by_a_response_without_one(contexts: list[Context]) -> None:
    context = contexts[0]
    turns = list(context.transcript.turns)
    text = "I do not know"
    turns[context.turn] = replace(
        turns[context.turn], committed=False, action=text, response_ids=play.codec().encode_response(text)
    )
    mute = replace(context, transcript=replace(context.transcript, turns=turns))
    (row,) = asked([mute], lambda text, seed: "no idea either")
    assert (row.mistakes_drawn, row.mistake_nats, row.oracle_nats) == (4, None, None)
    (row,) = asked([mute], lambda text, seed: play.reply(context.row.action))
    assert row.mistakes_drawn == 0


def test_where_the_oracle_names_nothing_nothing_is_counted(contexts: list[Context]) -> None:
    (row,) = asked([replace(contexts[0], best=())], lambda text, seed: play.reply("look"))
    assert (row.oracle_action, row.oracle_drawn, row.best_drawn, row.oracle_nats) == (None, 0, 0, None)
    assert row.mistake_nats is not None


def test_every_policy_sees_the_recorded_prompts_and_draws_with_the_same_seeds(
    contexts: list[Context],
) -> None:
    one, other = Engine(play.wander), Engine(play.wander)
    for engine in (one, other):
        ask(contexts, engine, play.prompter(), samples=2, sampling=Sampling(1.0, 32), seed=1, origin=ORIGIN)
    assert one.seen == other.seen
    prompts = [play.codec().decode(context.row.prompt_ids)[0] for context in contexts]
    assert [text for text, _ in one.seen] == [text for text in prompts for _ in range(2)]
    assert len({seed for _, seed in one.seen}) == 6
    short, sampling = play.prompter(history=1), Sampling(1.0, 32)
    with pytest.raises(ArtifactError, match="cannot be rebuilt"):
        ask(contexts, one, short, samples=1, sampling=sampling, seed=1, origin=ORIGIN)


def test_rows_do_not_depend_on_the_order_of_contexts(contexts: list[Context]) -> None:
    rows = asked(contexts, play.wander)
    assert asked(contexts[::-1], play.wander) == rows[::-1]
    assert [asked([context], play.wander)[0] for context in contexts] == rows
    assert asked([], play.refuse) == []


# ---------------------------------------------------------------------- scores


def test_an_actions_tokens_and_the_one_that_ends_it_are_scored(contexts: list[Context]) -> None:
    codec = play.codec()
    text = "<think>the fridge 1</think><action>go to fridge 1</action>"
    ids = codec.encode_response(text)
    found = action_tokens(ids, WORDING, codec)
    assert found is not None
    scored = [index for index, inside in zip(ids, found.mask, strict=True) if inside]
    assert codec.decode(scored)[0] == "go to fridge 1</action>"
    assert found.nats(-np.array(ids, np.float32)) == -sum(scored)
    assert action_tokens(codec.encode_response("I do not know"), WORDING, codec) is None
    assert action_tokens([], WORDING, codec) is None


def test_another_action_stands_in_the_place_of_the_recorded_one(contexts: list[Context]) -> None:
    codec = play.codec()
    ids = codec.encode_response("<think>the fridge 1</think><action>go to fridge 1</action>")
    found = with_action(ids, "go to fridge 12", WORDING, codec)
    assert found is not None
    expected = "<think>the fridge 1</think><action>go to fridge 12</action>"
    assert codec.decode(found.response_ids)[0] == expected
    scored = [index for index, inside in zip(found.response_ids, found.mask, strict=True) if inside]
    assert codec.decode(scored)[0] == "go to fridge 12</action>"
    start = int(np.flatnonzero(found.mask)[0])
    assert list(found.response_ids[:start]) == ids[:start]
    same = with_action(ids, "go to fridge 1", WORDING, codec)
    assert same is not None
    assert list(same.response_ids) == ids
    assert with_action(codec.encode_response("I do not know"), "look", WORDING, codec) is None


def test_sampled_tokens_before_the_action_are_never_encoded_anew(contexts: list[Context]) -> None:
    codec = play.codec()
    letters = [codec.encode_response(letter)[0] for letter in " fridge"]  # writing it gives fewer tokens
    head = [*codec.encode_response("<think>")[:-1], *letters]
    ids = [*head, *codec.encode_response("</think><action>look</action>")]
    assert ids != codec.encode_response(codec.decode(ids)[0])
    found = with_action(ids, "inventory", WORDING, codec)
    assert found is not None
    assert list(found.response_ids[: len(head)]) == head


def test_scores_are_of_the_recorded_thought(contexts: list[Context]) -> None:
    rows = asked(contexts, lambda text, seed: play.reply("look"))
    for context, row in zip(contexts, rows, strict=True):
        for action, nats in ((row.mistake, row.mistake_nats), (row.oracle_action, row.oracle_nats)):
            ids = play.codec().encode_response(play.reply(action or ""))
            found = action_tokens(ids, WORDING, play.codec())
            assert found is not None
            assert nats == pytest.approx(
                -sum(i for i, inside in zip(ids, found.mask, strict=True) if inside) / 1000
            )
        assert row.mistake == context.row.action


def test_a_real_models_score_of_an_action_is_the_sum_over_its_tokens() -> None:
    tokenizer = play.codec().tokenizer
    policy = make_policy(build_model(TinyStudent(layers=1, hidden=16, heads=2, kv_heads=1, intermediate=16),
                                     tokenizer, 0), tokenizer)  # fmt: skip
    engine = TransformersEngine(policy)
    prompt = play.codec().encode_prompt("look")
    ids = play.codec().encode_response("<think></think><action>look</action>")
    found = action_tokens(ids, WORDING, play.codec())
    assert found is not None
    (nats,) = engine.score([ScoreRequest(prompt, ids)])
    with torch.inference_mode():
        logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0].double()
    expected = 0.0
    for place in np.flatnonzero(found.mask):
        expected += float(logits[len(prompt) + place - 1].log_softmax(-1)[ids[place]])
    assert found.nats(nats) == pytest.approx(expected, abs=1e-4)


# ---------------------------------------------------------------------- summaries


def made(episode: str, mistakes: int, oracle: int, nats: float | None = None) -> ActionProbability:
    return ActionProbability(
        run="r", iteration=0, policy="p", episode=episode, family="f", turn=2, mistake="look",
        oracle_action="go", samples=10, temperature=1.0, mistakes_drawn=mistakes, oracle_drawn=oracle,
        best_drawn=oracle, mistake_nats=nats, oracle_nats=None if nats is None else nats - 1.0,
    )  # fmt: skip


def test_the_figures_by_hand() -> None:
    rows = [made("a", 10, 0, -0.5), made("b", 7, 1, -2.0), made("c", 1, 5, None), made("d", 2, 0, -1.0)]
    mistake, oracle, best = summarise(rows, draws=200, seed=0)
    assert mistake.sampled is not None
    assert (mistake.sampled.mean, mistake.sampled.episodes) == (0.5, 4)
    assert mistake.sampled_median == pytest.approx(0.45)
    assert mistake.scored_median == pytest.approx(math.exp(-1.0))
    assert mistake.scored_most == pytest.approx(math.exp(-0.5))
    assert (mistake.scored, oracle.scored, best.scored) == (3, 3, 0)
    assert oracle.scored_median == pytest.approx(math.exp(-2.0))
    assert best.sampled == oracle.sampled
    assert summarise(random.Random(1).sample(rows, 4), draws=200, seed=0) == [mistake, oracle, best]
    later = [made("d", 0, 8), made("a", 0, 10), made("x", 10, 10)]
    change = change_of(later, rows, "mistake", draws=200, seed=0)
    assert change is not None
    assert change.mean == pytest.approx((-1.0 - 0.2) / 2)
    assert change.episodes == 2
    gain = change_of(later, rows, "oracle", draws=200, seed=0)
    assert gain is not None
    assert gain.mean == pytest.approx((1.0 + 0.8) / 2)


def test_without_a_mistake_there_is_nothing_and_no_division() -> None:
    empty = summarise([], draws=9, seed=0)
    assert empty == [
        ActionShare(action, None, None, None, None, 0) for action in ("mistake", "oracle", "best")
    ]
    assert change_of([], [], "mistake", draws=9, seed=0) is None
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_by_hand() -> None:
    assert list(wilson(0, 32)) == pytest.approx([0.0, 0.1072], abs=1e-4)
    assert list(wilson(5, 10)) == pytest.approx([0.2366, 0.7634], abs=1e-4)


@given(st.integers(1, 200).flatmap(lambda draws: st.tuples(st.integers(0, draws), st.just(draws))))
def test_wilson_holds_the_share_and_is_symmetric(case: tuple[int, int]) -> None:
    hits, draws = case
    low, high = wilson(hits, draws)
    assert 0 <= low <= hits / draws + 1e-12
    assert hits / draws - 1e-12 <= high <= 1
    assert list(wilson(draws - hits, draws)) == pytest.approx([1 - high, 1 - low])
