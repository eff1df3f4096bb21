"""Recovery chains: what their rows hold, why each chain ends, and that both ways to a state agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from pivotopd.agent.prompting import HINT_TOKENS
from pivotopd.config import EnvironmentSection
from pivotopd.environments.alfworld.environment import AlfworldEnvironment
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.wording import PromptForm
from pivotopd.environments.base import Env, Environment, EnvSpec, StepResult
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.environments.replay import Reach
from pivotopd.errors import ArtifactError, EnvironmentFault
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion
from pivotopd.records import Chain, Label, Turn, from_table, to_table
from pivotopd.recovery import Recovered, Recoverer
from pivotopd.seeds import seed_of
from pivotopd.teacher.base import Query, Reading, Transcript
from pivotopd.teacher.oracle import OracleTeacher
from pivotopd.teacher.pivots import labels_of
from tests import play

TASKS = tuple(play.environment().tasks("train"))
HINTS: dict[PromptForm, str] = {"compact": "<hint>", "full": "A reasonable approach at this step is: "}


def hint_of(text: str) -> str | None:
    for mark in HINTS.values():
        if mark in text:
            return text.rpartition(mark)[2].splitlines()[0]
    return None


def obey(text: str, seed: int) -> str:
    """The hinted student: it does what the hint says."""
    hint = hint_of(text)
    assert hint is not None, text
    return play.reply(hint, "want")


def episode(plan: Sequence[str], name: str = "e", task: int = 0) -> Transcript:
    job = replace(play.jobs_of([TASKS[task]])[0], episode=name, seed=seed_of("test", name))
    (result,) = play.player(play.script({job.seed: plan}), max_turns=len(plan)).play([job])
    return play.transcript(job.task, result)


def oracle_labels(*transcripts: Transcript) -> list[Label]:
    teacher = OracleTeacher(play.environment(), True, 50)
    return [
        label
        for one, reading in zip(transcripts, teacher.read(transcripts), strict=True)
        for label in labels_of(reading, one.turns, play.environment().wording, teacher.name, 50)
    ]


def pivot_at(turn: int, transcript: Transcript) -> Label:
    one = transcript.turns[turn]
    return Label(
        run=one.run, iteration=one.iteration, episode=one.episode, turn=turn, gold_written="g",
        gold_action="g", accepted_actions=["g"], student_action=one.action, pivotal=True, reason="pivotal",
        distance_before=None, distance_after=None, teacher="t",
    )  # fmt: skip


@dataclass
class Told:
    """A teacher that names what a function of the query says."""

    say: Callable[[Query], str | None]
    name: str = "told"
    spent: Counts = field(default_factory=Counts)
    counts: dict[str, int] = field(default_factory=dict)
    queries: list[Query] = field(default_factory=list)

    def read(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        raise AssertionError("recovery reads no episodes")

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        self.queries += queries
        return [self.say(query) for query in queries]


def recoverer(answer: play.Answer = obey, **changes: object) -> Recoverer:
    made = Recoverer(
        MeteredEnvironment(play.environment()),
        play.prompter(),
        play.Scripted(answer),
        OracleTeacher(play.environment(), True, 50),
        play.SAMPLING,
        max_turns=play.MAX_TURNS,
        depth=2,
        limit=64,
        how="snapshot",
        run_seed=4,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def recovered(one: Recoverer, labels: Sequence[Label], *transcripts: Transcript) -> Recovered:
    return one.recover({t.episode.episode: t for t in transcripts}, labels, 2)


def used(one: Recoverer) -> Counts:
    """What was done with the recoverer's own environment."""
    assert isinstance(one.environment, MeteredEnvironment)
    return one.environment.counts


def fates(result: Recovered) -> list[tuple[str, int, int, str]]:
    return [(one.episode, one.pivot_turn, one.accepted, one.stopped) for one in result.chains]


@pytest.fixture(scope="module")
def lost() -> Transcript:
    """A lost episode with one mistake, at turn 3."""
    return episode(play.lose(TASKS[0], {3}))


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_chain_has_a_row_for_each_depth(lost: Transcript, depth: int) -> None:
    one = recoverer(depth=depth)
    result = recovered(one, oracle_labels(lost), lost)
    assert fates(result) == ([("e", 3, depth, "depth")] if depth else [])
    assert [(row.depth, row.turn, row.pivot_turn) for row in result.turns] == [
        (k, 3 + k, 3) for k in range(1, depth + 1)
    ]
    assert one.teacher_queries == depth
    # The last row's action is never executed; depth 1 needs no environment at all.
    assert used(one) == Counts(env_steps=max(0, depth - 1), restores=int(depth > 1))


def test_without_depth_nothing_is_asked_and_no_chain_has_a_fate(lost: Transcript) -> None:
    labels = [pivot_at(turn, lost) for turn in range(len(lost.turns))]
    assert recovered(recoverer(play.refuse, depth=0, limit=1), labels, lost) == Recovered([], [])


def test_one_turn_of_recovery_opens_no_environment(lost: Transcript) -> None:
    class Shut(AlfworldEnvironment):
        def open(self) -> Env:
            raise AssertionError("K = 1 needs no environment")

    shut = Shut(EnvironmentSection(prompt="compact", generated=play.GAMES))
    result = recovered(recoverer(depth=1, environment=shut), oracle_labels(lost), lost)
    assert fates(result) == [("e", 3, 1, "depth")]


@pytest.mark.parametrize("form", ["compact", "full"])
@pytest.mark.parametrize("history", [2, 5])
def test_a_row_holds_the_plain_prompt_and_beside_it_the_one_that_sampled(
    form: PromptForm, history: int
) -> None:
    world, prompter = play.environment(form), play.prompter(form, history=history)
    job = play.jobs_of([TASKS[0]])[0]
    (first,) = play.player(
        play.script({job.seed: play.lose(TASKS[0], {3})}), env=world, prompter=prompter
    ).play([job])
    transcript = play.transcript(job.task, first)
    one = recoverer(environment=world, prompter=prompter, depth=3)
    result = recovered(one, oracle_labels(transcript), transcript)
    assert len(result.turns) == 3
    # The same actions in a plain rollout show the same prompts.
    before = [turn.action for turn in transcript.turns[:4]]
    actions = [*before, *(row.action for row in result.turns)]
    (plain,) = play.player(
        play.script({job.seed: actions}), env=world, prompter=prompter, max_turns=len(actions)
    ).play([job])
    for row, rolled in zip(result.turns, plain.turns[4:], strict=True):
        assert row.prompt_ids == rolled.prompt_ids
        same = ("turn", "observation", "admissible", "instruction", "action", "state_hash", "snapshot",
                "episode", "group", "run", "iteration")  # fmt: skip
        assert [getattr(row, name) for name in same] == [getattr(rolled, name) for name in same]
        text = play.codec().decode(row.prompt_ids)[0]
        assert not world.wording.privileged(text)
        assert hint_of(text) is None
        hinted = play.codec().decode(row.hinted_prompt_ids or ())[0]
        assert world.wording.privileged(hinted)
        assert hint_of(hinted) == row.gold_action == row.action
        executed = row.depth is not None and row.depth < 3  # the last action of a chain is not played
        shown = (rolled.reward, rolled.next_observation) if executed else (0.0, None)
        assert (row.source, row.reward, row.next_observation) == ("recovery", *shown)
    assert isinstance(one.generator, play.Scripted)
    assert [text for text, _ in one.generator.seen] == [
        play.codec().decode(row.hinted_prompt_ids or ())[0] for row in result.turns
    ]


def test_rows_keep_exactly_the_sampled_tokens_and_name_their_seeds(lost: Transcript) -> None:
    result = recovered(recoverer(), oracle_labels(lost), lost)
    for row in result.turns:
        assert row.depth is not None
        assert row.seed == seed_of("recovery", 4, lost.episode.seed, 3, row.depth)
        expected = play.completion(play.reply(row.action, "want"), row.seed)
        assert row.response_ids == expected.response_ids.tolist()
        assert row.behaviour_logprobs_nats == expected.logprobs_nats.tolist()
        assert (row.finish_reason, row.committed, row.valid) == ("stop", True, True)
    read = from_table(Turn, to_table(Turn, result.turns), "here")
    assert [row.hinted_prompt_ids for row in read] == [row.hinted_prompt_ids for row in result.turns]
    assert from_table(Chain, to_table(Chain, result.chains), "here") == result.chains


def test_the_response_need_not_do_what_the_hint_says(lost: Transcript) -> None:
    result = recovered(recoverer(lambda text, seed: play.reply("inventory")), oracle_labels(lost), lost)
    assert fates(result) == [("e", 3, 2, "depth")]
    assert [row.action for row in result.turns] == ["inventory", "inventory"]
    assert result.turns[1].observation.startswith("You are")
    assert all(row.gold_action != "inventory" for row in result.turns)


def test_the_teacher_sees_what_the_student_sees(lost: Transcript) -> None:
    teacher = Told(lambda query: "look")
    result = recovered(recoverer(teacher=teacher, depth=2), oracle_labels(lost), lost)
    for query, row in zip(teacher.queries, result.turns, strict=True):
        text = play.environment().wording.prompt(query.view)
        assert play.codec().encode_prompt(text) == row.prompt_ids
        assert (query.view.hint, query.view.lesson, query.snapshot) == (None, None, row.snapshot)


def test_every_pivot_of_every_episode_gets_its_own_chain(lost: Transcript) -> None:
    won = episode(play.plan(TASKS[1], {2, 4}), "won", 1)
    labels = oracle_labels(won, lost)
    assert won.episode.won
    result = recovered(recoverer(), list(reversed(labels)), lost, won)
    assert fates(result) == [("e", 3, 2, "depth"), ("won", 2, 2, "depth"), ("won", 4, 2, "depth")]
    assert [(row.episode, row.turn) for row in result.turns] == [
        ("e", 4), ("e", 5), ("won", 3), ("won", 4), ("won", 5), ("won", 6),
    ]  # fmt: skip
    # Nothing of a chain depends on the others.
    alone = [row for label in labels for row in recovered(recoverer(), [label], lost, won).turns]
    assert sorted(alone, key=lambda row: (row.episode, row.turn)) == result.turns
    assert len({row.seed for row in result.turns}) == 6


def test_labels_that_are_not_pivotal_start_nothing(lost: Transcript) -> None:
    labels = [
        replace(label, pivotal=False, reason=reason)
        for label in oracle_labels(lost)
        for reason in ("agrees", "unresolved")
    ]
    assert recovered(recoverer(play.refuse), labels, lost) == Recovered([], [])


def test_restoring_and_replaying_give_the_same_rows(lost: Transcript) -> None:
    won = episode(play.plan(TASKS[1], {2, 4}), "won", 1)
    labels = oracle_labels(lost, won)
    hows: list[Reach] = ["snapshot", "replay"]
    ways = {how: recoverer(depth=3, how=how) for how in hows}
    results = {how: recovered(one, labels, lost, won) for how, one in ways.items()}
    assert results["snapshot"] == results["replay"]
    assert len(results["replay"].turns) == 9
    restored, replayed = (used(ways[how]) for how in hows)
    assert restored == Counts(restores=3, env_steps=6)
    # Once a chain, not once a depth: 4, 3 and 5 steps back to the pivots' successors.
    assert replayed == Counts(replays=3, env_resets=3, env_steps=6 + 4 + 3 + 5)


def test_an_engine_that_takes_no_states_is_counted_as_replayed(lost: Transcript) -> None:
    class Replaying(AlfworldEnvironment):
        def open(self) -> Env:
            env = NativeEnv()
            env.spec = EnvSpec("alfworld", "other", determinism="exact", fork="replay")
            return env

    other = Replaying(EnvironmentSection(prompt="compact", generated=play.GAMES))
    one = recoverer(environment=MeteredEnvironment(other))
    result = recovered(one, oracle_labels(lost), lost)
    assert result == recovered(recoverer(), oracle_labels(lost), lost)
    assert used(one) == Counts(replays=1, env_resets=1, env_steps=5)


# ---------------------------------------------------------------------- why a chain ends


def at_depth(depth: int, answer: str | Completion) -> play.Answer:
    """Obey, but answer otherwise at one depth of the chain of ``lost``."""
    wanted = seed_of("recovery", 4, seed_of("test", "e"), 3, depth)
    return lambda text, seed: answer if seed == wanted else obey(text, seed)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        ("I would rather not", "no_action", "I would rather not"),
        ("<think></think><action>  </action>", "no_action", "<action>  </action>"),
        (play.reply("look", "As the hint says"), "leak", "As the hint says"),
        (play.reply("look", "As was Suggested"), "leak", "As was Suggested"),
        (play.completion(play.reply("look"), 0, cut=True), "truncated_response", None),
    ],
)
def test_a_response_that_is_not_kept_ends_its_chain(
    lost: Transcript, depth: int, answer: str | Completion, reason: str, detail: str | None
) -> None:
    result = recovered(recoverer(at_depth(depth, answer), depth=3), oracle_labels(lost), lost)
    assert fates(result) == [("e", 3, depth - 1, reason)]
    assert [row.depth for row in result.turns] == list(range(1, depth))
    assert all(row.action == row.gold_action for row in result.turns)
    (chain,) = result.chains
    assert (detail is None) == (chain.detail is None)
    assert detail is None or detail in (chain.detail or "")


@pytest.mark.parametrize("depth", [1, 2])
def test_where_the_teacher_names_nothing_the_chain_ends(lost: Transcript, depth: int) -> None:
    teacher = Told(lambda query: None if query.view.turn == 3 + depth else "look")
    result = recovered(recoverer(teacher=teacher), oracle_labels(lost), lost)
    assert fates(result) == [("e", 3, depth - 1, "unresolved")]


def test_a_hint_that_does_not_fit_ends_the_chain(lost: Transcript) -> None:
    longest = max(len(turn.prompt_ids) for turn in lost.turns[:6])
    tight = play.prompter(prompt_tokens=longest)
    for hint, kept in (("x" * 5, 1), ("x" * (longest + HINT_TOKENS), 0)):
        teacher = Told(lambda query, hint=hint: hint)  # type: ignore[misc]  # bound now
        one = recoverer(lambda text, seed: play.reply("look"), teacher=teacher, prompter=tight, depth=1)
        result = recovered(one, oracle_labels(lost), lost)
        assert fates(result) == [("e", 3, kept, "depth" if kept else "prompt_too_long")]


def test_a_next_prompt_that_does_not_fit_ends_the_chain_after_its_row(lost: Transcript) -> None:
    bare = play.prompter(history=0)
    job = replace(play.jobs_of([TASKS[0]])[0], episode="e")
    (first,) = play.player(play.script({job.seed: [turn.action for turn in lost.turns]}), prompter=bare).play(
        [job]
    )
    short = play.transcript(job.task, first)
    limit = max(len(turn.prompt_ids) for turn in short.turns)
    tight = replace(bare, prompt_tokens=limit)
    wide = WideEnvironment(EnvironmentSection(prompt="compact", generated=play.GAMES))
    result = recovered(recoverer(prompter=tight, environment=wide), oracle_labels(lost), short)
    assert fates(result) == [("e", 3, 1, "prompt_too_long")]


class Wide(NativeEnv):
    """Answers every action with a very long text."""

    def step(self, action: str) -> StepResult:
        return replace(super().step(action), observation="x" * 5000)


class WideEnvironment(AlfworldEnvironment):
    def open(self) -> Env:
        return Wide()


def test_more_pivots_than_the_cap_lose_some_at_random_by_the_seed(lost: Transcript) -> None:
    names = [f"e{i}" for i in range(8)]
    many = [episode([turn.action for turn in lost.turns[:6]], name) for name in names]
    labels = [pivot_at(3, one) for one in many]
    teacher = Told(lambda query: "look")

    def kept(run_seed: int, iteration: int = 0) -> frozenset[str]:
        one = recoverer(limit=3, depth=1, run_seed=run_seed, teacher=teacher)
        result = one.recover({t.episode.episode: t for t in many}, labels, iteration)
        assert len(result.chains) == 8
        assert sorted(chain.stopped for chain in result.chains) == ["depth"] * 3 + ["over_cap"] * 5
        assert [chain.episode for chain in result.chains] == names
        return frozenset(row.episode for row in result.turns)

    drawn = [kept(seed) for seed in range(24)]
    assert kept(0) == drawn[0]
    assert len({*drawn, kept(0, 1)}) > 8
    assert frozenset.union(*drawn) == set(names)
    counts = [sum(name in one for one in drawn) for name in names]
    assert max(counts) < 18  # 9 expected each; all chains are alike to the draw
    assert min(counts) > 2
    assert kept(5) != kept(5, 1)
    everything = recoverer(limit=8, depth=1, teacher=teacher)
    assert {chain.stopped for chain in recovered(everything, labels, *many).chains} == {"depth"}
    nothing = recoverer(play.refuse, limit=0, depth=1, teacher=teacher)
    assert {chain.stopped for chain in recovered(nothing, labels, *many).chains} == {"over_cap"}


def test_a_pivot_on_the_last_turn_gets_no_chain_and_takes_no_place_under_the_cap(lost: Transcript) -> None:
    over = episode(play.plan(TASKS[0], {3}, 4), "a")
    labels = [*oracle_labels(over), *oracle_labels(lost)]
    result = recovered(recoverer(limit=1), labels, over, lost)
    assert fates(result) == [("a", 3, 0, "episode_over"), ("e", 3, 2, "depth")]


def test_a_chain_that_wins_keeps_its_row_and_ends(lost: Transcript) -> None:
    result = recovered(recoverer(depth=20), oracle_labels(lost), lost)
    (chain,) = result.chains
    assert chain.stopped == "episode_over"
    assert 1 < chain.accepted == len(result.turns) < 20
    env = play.environment().open()
    env.reset(TASKS[0], 0)
    actions = [turn.action for turn in lost.turns[:4]] + [row.action for row in result.turns]
    assert [env.step(action).won for action in actions] == [False] * (len(actions) - 1) + [True]


@pytest.mark.parametrize(("max_turns", "kept"), [(5, 1), (6, 2), (7, 3), (8, 3)])
def test_no_row_lies_past_the_turn_limit(lost: Transcript, max_turns: int, kept: int) -> None:
    short = replace(lost, turns=lost.turns[:max_turns])
    result = recovered(recoverer(depth=3, max_turns=max_turns), oracle_labels(lost), short)
    reason = "depth" if kept == 3 else "turn_limit"
    assert fates(result) == [("e", 3, kept, reason)]
    assert [row.turn for row in result.turns] == list(range(4, 4 + kept))


def test_a_record_that_is_not_reproduced_is_never_trained_past(lost: Transcript) -> None:
    prompter = play.prompter(history=1)
    job = replace(play.jobs_of([TASKS[0]])[0], episode="e")
    (first,) = play.player(
        play.script({job.seed: [turn.action for turn in lost.turns]}), prompter=prompter
    ).play([job])
    turns = list(first.turns)
    forgotten = [replace(turns[0], observation="You are somewhere else."), *turns[1:]]
    other_state = [*turns[:4], replace(turns[4], state_hash="0" * 16), *turns[5:]]
    cases: list[tuple[list[Turn], Reach, str]] = [
        (forgotten, "replay", "observation of turn 0 differs"),
        (other_state, "snapshot", "state before turn 4 differs"),
        (other_state, "replay", "state before turn 4 differs"),
    ]
    for rows, how, detail in cases:
        transcript = Transcript(job.task, first.episode, rows)
        one = recoverer(prompter=prompter, how=how)
        result = recovered(one, oracle_labels(lost), transcript)
        assert fates(result) == [("e", 3, 1, "replay_divergence")]
        assert detail in (result.chains[0].detail or "")
    # The window does not show turn 0: restoring is right not to care.
    result = recovered(
        recoverer(prompter=prompter), oracle_labels(lost), Transcript(job.task, first.episode, forgotten)
    )
    assert fates(result) == [("e", 3, 2, "depth")]


def test_a_broken_engine_ends_its_own_chain_only(lost: Transcript) -> None:
    class Broken(NativeEnv):
        def step(self, action: str) -> StepResult:
            if action == "inventory":
                raise EnvironmentFault("the engine fell over")
            return super().step(action)

    class BrokenEnvironment(AlfworldEnvironment):
        def open(self) -> Env:
            return Broken()

    broken = BrokenEnvironment(EnvironmentSection(prompt="compact", generated=play.GAMES))
    other = episode([turn.action for turn in lost.turns], "f")
    labels = [pivot_at(3, lost), pivot_at(3, other)]
    one = recoverer(at_depth(1, play.reply("inventory")), environment=broken)
    result = recovered(one, labels, lost, other)
    assert fates(result) == [("e", 3, 1, "environment_error"), ("f", 3, 2, "depth")]
    assert result.chains[0].detail == "the engine fell over"


# ---------------------------------------------------------------------- rows of other settings


@pytest.mark.parametrize(
    "changes", [{"history": 4}, {"history": 0}, {"prompt_tokens": 40}, {"prompt": "full"}]
)
def test_prompts_of_other_settings_are_refused(lost: Transcript, changes: Mapping[str, object]) -> None:
    other = play.prompter(**changes)  # type: ignore[arg-type]  # by name
    with pytest.raises(ArtifactError, match=r"episode e, turn \d+ cannot be rebuilt") as caught:
        recovered(recoverer(play.refuse, prompter=other), [pivot_at(7, lost)], lost)
    assert caught.value.mend is not None


def test_a_changed_observation_inside_the_window_is_refused(lost: Transcript) -> None:
    rows = [*lost.turns[:3], replace(lost.turns[3], observation="Else."), *lost.turns[4:]]
    with pytest.raises(ArtifactError, match="cannot be rebuilt"):
        recovered(recoverer(play.refuse), [pivot_at(3, lost)], replace(lost, turns=rows))


def test_all_environments_are_freed(lost: Transcript) -> None:
    class Kept(AlfworldEnvironment):
        closed = 0
        opened = 0

        def open(self) -> Env:
            outer = self
            outer.opened += 1

            class Counted(NativeEnv):
                def close(self) -> None:
                    outer.closed += 1
                    super().close()

            return Counted()

    kept = Kept(EnvironmentSection(prompt="compact", generated=play.GAMES))
    world: Environment = kept
    for answer in (obey, at_depth(2, "nothing")):
        recovered(recoverer(answer, environment=world, depth=3), oracle_labels(lost), lost)
    assert kept.opened == kept.closed == 2
