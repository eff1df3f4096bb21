"""Rollout: what a row says, why an episode ends, and that neighbours never matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.config import EnvironmentSection, TinyStudent
from pivotopd.environments.alfworld.environment import AlfworldEnvironment
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.base import Env, StepResult, Task
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.errors import EnvironmentFault, ReplayDivergence
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.checkpoint import make_policy
from pivotopd.models.tiny import build_model
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.records import Episode, Turn, from_table, to_table
from pivotopd.rollout import Job, Played, Start, training_jobs
from pivotopd.seeds import seed_of
from tests import play

TASKS = tuple(play.environment().tasks("train"))
JOBS = play.jobs_of(TASKS[:4], samples=2)


@pytest.fixture(scope="module")
def wandered() -> dict[str, Played]:
    return play.played(play.player(play.wander), JOBS)


class Odd(NativeEnv):
    """An engine with a defect in some of its games."""

    def __init__(self, defects: dict[str, str]) -> None:
        super().__init__()
        self.defects, self.task, self.closed = defects, "", 0

    def reset(self, task: Task, seed: int = 0) -> StepResult:
        self.task = task.id
        if self.defects.get(task.id) == "reset":
            raise EnvironmentFault("the engine does not start", where=task.id)
        return super().reset(task, seed)

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        turn = self.snapshot().turns
        if self.defects.get(self.task) == "step" and turn == 3:
            raise EnvironmentFault("the engine fell over", where=self.task, mend="look after it")
        return replace(result, done=True) if self.defects.get(self.task) == "done" and turn == 2 else result

    def close(self) -> None:
        self.closed += 1
        super().close()


class OddEnvironment(AlfworldEnvironment):
    """The generated games in such engines."""

    def __init__(self, defects: dict[str, str]) -> None:
        super().__init__(EnvironmentSection(prompt="compact", generated=play.GAMES))
        self.defects, self.opened = defects, list[Odd]()

    def open(self) -> Env:
        self.opened.append(Odd(self.defects))
        return self.opened[-1]


def test_an_episode_that_follows_the_oracle_is_won_and_its_rows_say_all() -> None:
    task = TASKS[0]
    (job,) = play.jobs_of([task])
    actions = play.plan(task)
    metered = MeteredEnvironment(play.environment())
    one = play.player(play.script({job.seed: actions}), env=metered)
    (result,) = one.play([job])
    episode, turns = result.episode, result.turns
    assert episode == Episode(
        run="test", iteration=2, episode=job.episode, task=task.id, task_hash=task.content_hash,
        family=task.family, group=job.group, sample=0, seed=job.seed, episode_return=10.0, won=True,
        score=1.0,
        termination="won", error=None, turns=len(actions), environment="alfworld native-1/move",
        data_fingerprint="sha256:data", policy="sha256:policy",
    )  # fmt: skip
    assert [turn.action for turn in turns] == actions
    assert [turn.turn for turn in turns] == list(range(len(actions)))
    assert [turn.reward for turn in turns] == [0.0] * (len(actions) - 1) + [10.0]
    assert [turn.next_observation for turn in turns[:-1]] == [turn.observation for turn in turns[1:]]
    env, pairs = play.environment().open(), list[tuple[str, str]]()
    seen = env.reset(task, job.seed)
    for turn in turns:
        assert (turn.observation, turn.admissible) == (seen.observation, seen.admissible)
        assert (turn.state_hash, turn.snapshot) == (env.state_hash(), env.dump())
        prompt = play.prompter().plain(
            play.environment().instruction(task), pairs, turn.turn, seen.observation, seen.admissible
        )
        assert prompt is not None
        assert turn.prompt_ids == prompt.ids
        assert turn.seed == seed_of("response", job.seed, turn.turn)
        expected = play.completion(play.reply(turn.action), turn.seed)
        assert turn.response_ids == expected.response_ids.tolist()
        assert turn.behaviour_logprobs_nats == expected.logprobs_nats.tolist()
        assert (turn.committed, turn.valid, turn.finish_reason, turn.temperature) == (True, True, "stop", 1.0)
        assert (turn.source, turn.pivot_turn, turn.hinted_prompt_ids) == ("rollout", None, None)
        pairs.append((seen.observation, turn.action))
        seen = env.step(turn.action)
    assert metered.counts == Counts(env_steps=len(actions), env_resets=1)


@settings(max_examples=8, deadline=None)
@given(st.permutations(JOBS), st.integers(1, 9))
def test_a_result_depends_on_neither_order_nor_batch(jobs: list[Job], batch: int) -> None:
    expected = play.played(play.player(play.wander), JOBS)
    assert play.played(play.player(play.wander, batch=batch), jobs) == expected


@dataclass
class Anyhow:
    """A policy whose responses end in an order that somebody else decides.

    Args:
        policy: Answers.
        choose: Returns which of the keys in flight land next.
    """

    policy: play.Scripted
    choose: Callable[[list[int]], list[int]]
    flying: dict[int, Request] = field(default_factory=dict)
    most: int = 0
    closed: int = 0

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        raise AssertionError("a policy that flies is asked for no batch")

    def begin(self, sampling: Sampling) -> Anyhow:
        return self

    def send(self, requests: Mapping[int, Request]) -> None:
        assert not requests.keys() & self.flying.keys()
        self.flying |= requests
        self.most = max(self.most, len(self.flying))

    def land(self) -> dict[int, Completion]:
        keys = sorted(self.choose(sorted(self.flying)))
        asked = [self.flying.pop(key) for key in keys]
        return dict(zip(keys, self.policy.generate(asked, Sampling(1.0, 12)), strict=True))

    def close(self) -> None:
        self.closed += 1


@settings(max_examples=15, deadline=None)
@given(data=st.data(), batch=st.integers(1, 9))
def test_a_result_does_not_depend_on_which_responses_end_first(data: st.DataObject, batch: int) -> None:
    expected = play.played(play.player(play.wander), JOBS)
    rng = data.draw(st.randoms(use_true_random=False))
    policy = Anyhow(play.Scripted(play.wander), lambda keys: rng.sample(keys, rng.randint(1, len(keys))))
    one = play.player(play.wander, batch=batch)
    one.generator = policy
    assert play.played(one, JOBS) == expected
    assert policy.most == min(batch, len(JOBS))
    assert (policy.flying, policy.closed) == ({}, 1)


def test_an_episode_is_played_to_its_end_while_another_s_response_is_being_written() -> None:
    policy = Anyhow(play.Scripted(play.wander), lambda keys: keys[-1:])
    one = play.player(play.wander, batch=2)
    one.generator = policy
    order = [found.episode.episode for found in one.play(JOBS[:2])]
    # The newest key is always the episode whose turn ended last.
    assert order == [JOBS[1].episode, JOBS[0].episode]
    seeds = [seed for _, seed in policy.policy.seen]
    own = {seed_of("response", JOBS[0].seed, turn) for turn in range(play.MAX_TURNS)}
    assert not own & set(seeds[: play.MAX_TURNS])


def test_who_stops_listening_gives_up_what_flies() -> None:
    policy = Anyhow(play.Scripted(play.wander), lambda keys: keys[:1])
    one = play.player(play.wander, batch=4)
    one.generator = policy
    with closing(one.play(JOBS)) as playing:
        next(playing)
        assert policy.closed == 0
    assert policy.closed == 1


def test_wandering_reaches_the_turn_limit_and_bad_replies_cost_turns(
    wandered: dict[str, Played],
) -> None:
    limit = [one for one in wandered.values() if one.episode.termination == "turn_limit"]
    assert limit
    assert all(len(one.turns) == one.episode.turns == play.MAX_TURNS for one in limit)
    assert not any(one.episode.won for one in limit)
    turns = [turn for one in wandered.values() for turn in one.turns]
    assert {turn.committed for turn in turns} == {True, False}
    assert {turn.finish_reason for turn in turns} == {"stop", "length"}
    assert all(turn.next_observation == "Nothing happens." for turn in turns if not turn.committed)


def test_seeds_differ_inside_a_group_and_repeat_across_runs(wandered: dict[str, Played]) -> None:
    turns = [turn for one in wandered.values() for turn in one.turns]
    assert len({turn.seed for turn in turns}) == len(turns)
    first, second = (wandered[job.episode].turns for job in JOBS[:2])
    assert first[0].prompt_ids == second[0].prompt_ids
    assert [turn.action for turn in first] != [turn.action for turn in second]
    assert play.played(play.player(play.wander), JOBS) == wandered


def test_rows_survive_their_table(wandered: dict[str, Played]) -> None:
    turns = [replace(turn, admissible=list(turn.admissible or ())) for one in wandered.values()
             for turn in one.turns]  # fmt: skip
    read = from_table(Turn, to_table(Turn, turns), "here")
    assert [replace(row, behaviour_logprobs_nats=()) for row in read] == [
        replace(row, behaviour_logprobs_nats=()) for row in turns
    ]
    assert [row.behaviour_logprobs_nats for row in read] == [row.behaviour_logprobs_nats for row in turns]


def test_a_broken_engine_ends_its_own_episode_only() -> None:
    ids = [task.id for task in TASKS[:4]]
    broken = OddEnvironment({ids[0]: "step", ids[1]: "reset"})
    jobs = play.jobs_of(TASKS[:4])
    sound = play.played(play.player(play.wander), jobs)
    found = play.played(play.player(play.wander, env=broken), jobs)
    fell, unstarted = (found[job.episode] for job in jobs[:2])
    assert (fell.episode.termination, fell.episode.won, len(fell.turns)) == ("environment_error", False, 2)
    assert fell.turns == sound[jobs[0].episode].turns[:2]
    assert fell.episode.error == f"the engine fell over\n  where: {ids[0]}\n  mend:  look after it"
    assert (unstarted.episode.termination, unstarted.turns) == ("environment_error", ())
    assert unstarted.episode.error is not None
    assert "does not start" in unstarted.episode.error
    assert unstarted.episode.turns == 0
    assert unstarted.episode.score == 0.0
    for job in jobs[2:]:
        assert found[job.episode] == sound[job.episode]
    assert [one.closed for one in broken.opened] == [1, 1, 1, 1]


def test_only_the_verdict_is_success() -> None:
    job, other = play.jobs_of(TASKS[:2])
    odd = OddEnvironment({job.task.id: "done"})
    plans = {job.seed: ["look"] * 9, other.seed: play.plan(other.task)}
    found = play.played(play.player(play.script(plans), env=odd), [job, other])
    episode = found[job.episode].episode
    assert (episode.termination, episode.won, episode.turns) == ("done", False, 2)
    assert found[other.episode].episode.termination == "won"


def test_a_win_on_the_last_turn_is_a_win() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    actions = play.plan(job.task)
    for limit, reason in ((len(actions), "won"), (len(actions) - 1, "turn_limit")):
        one = play.player(play.script({job.seed: actions}), max_turns=limit)
        (result,) = one.play([job])
        assert (result.episode.termination, result.episode.won) == (reason, reason == "won")
        assert result.episode.turns == limit


def test_an_episode_ends_where_even_the_bare_prompt_is_too_long() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    (whole,) = play.player(
        play.script({job.seed: play.plan(job.task)}), prompter=play.prompter(history=0)
    ).play([job])
    lengths = [len(turn.prompt_ids) for turn in whole.turns]
    first = next(i for i in range(1, len(lengths)) if lengths[i] > max(lengths[:i]))
    for limit, turns in ((max(lengths[:first]), first), (lengths[0] - 1, 0)):
        short = play.prompter(history=5, prompt_tokens=limit)
        one = play.player(play.script({job.seed: play.plan(job.task)}), prompter=short)
        (result,) = one.play([job])
        assert (result.episode.termination, result.episode.turns) == ("prompt_too_long", turns)
        assert not result.episode.won
        assert result.episode.error is None
        assert all(len(turn.prompt_ids) <= limit for turn in result.turns)


def test_a_long_prompt_drops_its_oldest_pairs() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    actions = play.plan(job.task)
    (whole,) = play.player(play.script({job.seed: actions})).play([job])
    (bare,) = play.player(play.script({job.seed: actions}), prompter=play.prompter(history=0)).play([job])
    limit = max(len(turn.prompt_ids) for turn in bare.turns) + 15
    (short,) = play.player(
        play.script({job.seed: actions}), prompter=play.prompter(prompt_tokens=limit)
    ).play([job])
    assert short.episode.termination == "won"
    texts = [[play.codec().decode(turn.prompt_ids)[0] for turn in result.turns] for result in (whole, short)]
    assert texts[0] != texts[1]
    for long, cut in zip(*texts, strict=True):
        pairs, kept = ([line for line in text.splitlines() if line[0] == "-"] for text in (long, cut))
        assert kept == pairs[len(pairs) - len(kept) :]
        assert [line for line in long.splitlines() if line[0] != "-"] == [
            line for line in cut.splitlines() if line[0] != "-"
        ]


def test_a_cut_response_keeps_its_tokens() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    cut = play.completion("<think>want", 7, cut=True)
    (result,) = play.player(play.script({job.seed: [cut, "look"]}), max_turns=2).play([job])
    turn = result.turns[0]
    assert turn.finish_reason == "length"
    assert not turn.committed
    assert not turn.valid
    assert turn.response_ids == cut.response_ids.tolist()
    assert turn.behaviour_logprobs_nats == cut.logprobs_nats.tolist()
    assert play.codec().tokenizer.eos_token_id not in turn.response_ids
    assert (turn.action, result.turns[1].finish_reason) == ("<think>want", "stop")


def test_text_that_is_not_utf8_is_shown_escaped_and_its_ids_are_kept() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    byte = play.codec().tokenizer.convert_tokens_to_ids("\u00ff")  # the byte-level letter of 0xff
    ids = [*play.codec().encode_response("<think></think><action>go to")[:-1], byte, byte]
    ids += play.codec().encode_response("</action>")
    odd = play.of_ids(ids, 3)
    (result,) = play.player(play.script({job.seed: [odd, "look"]}), max_turns=2).play([job])
    turn = result.turns[0]
    assert turn.text_escaped
    assert turn.response_ids == ids
    assert turn.action == "go to\\xff\\xff"
    assert turn.committed
    assert turn.next_observation == "Nothing happens."
    (back,) = from_table(Turn, to_table(Turn, [turn]), "here")
    assert back.response_ids == ids
    assert back.response_text == turn.response_text


def test_a_start_goes_on_from_its_state_with_its_history() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    actions = play.plan(job.task)
    (whole,) = play.player(play.script({job.seed: actions})).play([job])

    def open_at(env: Env) -> StepResult:
        assert whole.turns[2].snapshot is not None
        return env.load(job.task, whole.turns[2].snapshot)

    def fail(env: Env) -> StepResult:
        raise ReplayDivergence("it looks otherwise", where=job.task.id)

    later = replace(job, start=Start(whole.turns[:2], open_at))
    (result,) = play.player(play.script({job.seed: actions})).play([later])
    assert result.turns == whole.turns[2:]
    assert (result.episode.turns, result.episode.won) == (len(actions) - 2, True)
    (lost,) = play.player(play.refuse).play([replace(job, start=Start(whole.turns[:2], fail))])
    assert lost.episode.termination == "environment_error"
    assert lost.turns == ()


def test_a_forced_turn_is_done_and_remembered_but_nobody_is_asked() -> None:
    task = TASKS[0]
    (job,) = play.jobs_of([task])
    actions = play.plan(task)
    own = play.script({job.seed: [*actions[:1], play.completion("asked", 0), *actions[2:]]})
    (plain,) = play.player(play.script({job.seed: actions})).play([job])
    forced = replace(job, forced=lambda env, turn: actions[1] if turn == 1 else None)
    metered = MeteredEnvironment(play.environment())
    one = play.player(own, env=metered)
    (result,) = one.play([forced])
    assert result.episode == plain.episode
    assert [turn.prompt_ids for turn in result.turns[2:]] == [turn.prompt_ids for turn in plain.turns[2:]]
    row = result.turns[1]
    tokens = (row.prompt_ids, row.response_ids, row.behaviour_logprobs_nats, row.response_text)
    assert tokens == ((), (), (), "")
    assert (row.source, row.finish_reason) == ("forced", "forced")
    shown = ("turn", "seed", "observation", "admissible", "action", "reward", "state_hash", "snapshot",
             "next_observation")  # fmt: skip
    assert [getattr(row, name) for name in shown] == [getattr(plain.turns[1], name) for name in shown]
    assert [turn.source for turn in result.turns].count("forced") == 1
    assert metered.counts.env_steps == len(actions)
    assert isinstance(one.generator, play.Scripted)
    assert len(one.generator.seen) == len(actions) - 1


def test_forced_and_asked_turns_share_a_batch_and_do_not_touch_each_other() -> None:
    jobs = play.jobs_of(TASKS[:3], samples=2)
    plain = play.played(play.player(play.wander), jobs)
    mixed = [
        replace(job, forced=lambda env, turn: "look" if turn % 2 else None) if place % 2 else job
        for place, job in enumerate(jobs)
    ]
    expected = play.played(play.player(play.wander), mixed)
    for batch in (1, 4):
        assert play.played(play.player(play.wander, batch=batch), mixed[::-1]) == expected
    for job in jobs[::2]:
        assert expected[job.episode] == plain[job.episode]
    for job in jobs[1::2]:
        assert all((turn.source == "forced") == bool(turn.turn % 2) for turn in expected[job.episode].turns)


def test_a_fault_of_what_forces_ends_its_own_episode() -> None:
    def tired(env: Env, turn: int) -> str | None:
        if turn == 1:
            raise EnvironmentFault("the search is too large")
        return None

    first, second = play.jobs_of(TASKS[:2])
    found = play.played(play.player(play.wander), [replace(first, forced=tired), second])
    assert found[first.episode].episode.termination == "environment_error"
    assert found[first.episode].episode.turns == 1
    assert found[second.episode] == play.played(play.player(play.wander), [second])[second.episode]


def test_a_start_at_the_limit_is_over_at_once() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    (whole,) = play.player(play.script({job.seed: ["look"] * 4}), max_turns=4).play([job])
    start = Start(whole.turns, lambda env: env.reset(job.task, job.seed))
    (result,) = play.player(play.refuse, max_turns=4).play([replace(job, start=start)])
    assert (result.episode.termination, result.episode.turns, result.turns) == ("turn_limit", 0, ())


def test_a_real_engine_plays_the_same_alone_and_in_company() -> None:
    tokenizer = play.codec().tokenizer
    student = TinyStudent(layers=1, hidden=16, heads=2, kv_heads=1, intermediate=16)
    engine = TransformersEngine(make_policy(build_model(student, tokenizer, 0), tokenizer))
    short = Sampling(1.0, 6)
    jobs = play.jobs_of(TASKS[:2], samples=2)
    one, many = (
        play.played(
            play.player(play.refuse, batch=batch, generator=engine, sampling=short, max_turns=2), jobs
        )
        for batch in (1, 8)
    )
    for name, result in one.items():
        assert [turn.response_ids for turn in result.turns] == [t.response_ids for t in many[name].turns]
        assert [turn.prompt_ids for turn in result.turns] == [t.prompt_ids for t in many[name].turns]
        assert all(turn.behaviour_logprobs_nats for turn in result.turns)


# ---------------------------------------------------------------------- which tasks are played


def test_all_tasks_are_walked_before_any_repeats_and_the_next_lap_is_shuffled_anew() -> None:
    walked = [list(training_jobs(TASKS, run_seed=5, iteration=i, count=3, group_size=2)) for i in range(16)]
    order = [job.task.id for jobs in walked for job in jobs if job.sample == 0]
    laps = [order[i : i + len(TASKS)] for i in range(0, len(order), len(TASKS))]
    assert len(laps) == 6
    assert all(sorted(lap) == sorted(task.id for task in TASKS) for lap in laps)
    assert len({tuple(lap) for lap in laps}) == 6
    assert [[job.sample for job in jobs] for jobs in walked] == [[0, 1] * 3] * 16
    names = [job.episode for jobs in walked for job in jobs]
    assert len(set(names)) == len(names)
    assert all(count == 2 for count in Counter(job.group for jobs in walked for job in jobs).values())
    seeds = [job.seed for jobs in walked for job in jobs]
    assert len(set(seeds)) == len(seeds)
    again = training_jobs(tuple(reversed(TASKS)), run_seed=5, iteration=4, count=3, group_size=2)
    assert again == walked[4]
    other = training_jobs(TASKS, run_seed=6, iteration=4, count=3, group_size=2)
    assert not {job.seed for job in other} & {job.seed for job in walked[4]}


def test_a_task_that_comes_twice_in_one_iteration_is_played_with_other_seeds() -> None:
    jobs = training_jobs(TASKS[:2], run_seed=0, iteration=0, count=5, group_size=3)
    assert Counter(job.task.id for job in jobs).most_common(1)[0][1] >= 6
    assert len({job.seed for job in jobs}) == len(jobs) == 15
