"""Scripted play: real games, wordings and tokenizer; only the policy's answers are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from pivotopd.agent.prompting import Prompter
from pivotopd.config import EnvironmentSection, GeneratedGames
from pivotopd.environments.alfworld.environment import AlfworldEnvironment, AlfworldOracle
from pivotopd.environments.alfworld.wording import PromptForm, make_wording, phrases
from pivotopd.environments.base import Env, Environment, StepResult, Task
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.codec import TokenizerCodec
from pivotopd.models.tiny import build_tokenizer
from pivotopd.records import Turn
from pivotopd.rollout import Job, Origin, Played, Player
from pivotopd.seeds import rng_of, seed_of
from pivotopd.teacher.base import Transcript

MAX_TURNS = 24
PROMPT_TOKENS = 4096
HISTORY = 5
SAMPLING = Sampling(temperature=1.0, max_tokens=32)
GAMES = GeneratedGames(seed=3, train=8, valid=4, test=4)

Answer = Callable[[str, int], str | Completion]


@lru_cache(maxsize=4)
def environment(prompt: PromptForm = "compact") -> AlfworldEnvironment:
    """Eight small generated games to train on, four valid ones."""
    return AlfworldEnvironment(EnvironmentSection(prompt=prompt, generated=GAMES))


def with_oracle(kind: type[AlfworldOracle]) -> AlfworldEnvironment:
    """The same games, with another oracle, which must need nothing of its game."""

    class Other(AlfworldEnvironment):
        def oracle(self, task: Task) -> AlfworldOracle:
            return object.__new__(kind)

    return Other(EnvironmentSection(prompt="compact", generated=GAMES))


@lru_cache(maxsize=1)
def codec() -> TokenizerCodec:
    return TokenizerCodec(build_tokenizer(phrases()))


def prompter(
    prompt: PromptForm = "compact", *, history: int = HISTORY, prompt_tokens: int = PROMPT_TOKENS
) -> Prompter:
    return Prompter(make_wording(prompt), codec(), history, prompt_tokens)


def reply(action: str, thought: str = "") -> str:
    """A reply that obeys every rule."""
    return f"<think>{thought}</think><action>{action}</action>"


def completion(text: str, seed: int, *, cut: bool = False) -> Completion:
    """A response as an engine would give it, with made-up log-probabilities that depend on the seed."""
    ids = codec().encode_response(text)
    return of_ids(ids[:-1] if cut else ids, seed, cut=cut)


def of_ids(ids: Sequence[int], seed: int, *, cut: bool = False) -> Completion:
    nats = -rng_of("made-up nats", seed).random(len(ids))
    return Completion(np.array(ids, np.int32), nats.astype(np.float32), "length" if cut else "stop")


@dataclass
class Scripted:
    """A policy whose answer is a function of prompt text and seed; it keeps what it saw."""

    answer: Answer
    seen: list[tuple[str, int]] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        found = []
        for request in requests:
            text, escaped = codec().decode(request.prompt_ids)
            assert not escaped
            self.seen.append((text, request.seed))
            answer = self.answer(text, request.seed)
            found.append(completion(answer, request.seed) if isinstance(answer, str) else answer)
        return found


def refuse(text: str, seed: int) -> str:
    raise AssertionError(f"nothing should be asked, but: {text!r}")


def script(plans: Mapping[int, Sequence[str | Completion]], otherwise: Answer = refuse) -> Answer:
    """Answer turn ``t`` of the job with seed ``s`` with ``plans[s][t]``; a text is an action."""
    table = {
        seed_of("response", seed, turn): reply(act) if isinstance(act, str) else act
        for seed, plan in plans.items()
        for turn, act in enumerate(plan)
    }

    def answer(text: str, seed: int) -> str | Completion:
        return table[seed] if seed in table else otherwise(text, seed)

    return answer


def wander(text: str, seed: int) -> str | Completion:
    """Do something that depends on prompt and seed alone: mostly go somewhere, at times badly."""
    rng = rng_of("wander", text, seed)
    listed = next(line for line in text.splitlines() if line.startswith("places:"))
    words = listed.removeprefix("places: ").split()
    places = [f"{kind} {number}" for kind, number in zip(words[::2], words[1::2], strict=True)]
    place = places[int(rng.integers(len(places)))]
    kind = int(rng.integers(10))
    if kind == 0:
        return "I do not know"
    if kind == 1:
        return completion(f"<think>go to {place}, go to {place}", seed, cut=True)
    return reply(f"open {place}" if kind < 4 else f"go to {place}")


def jobs_of(tasks: Iterable[Task], samples: int = 1) -> list[Job]:
    return [
        Job(f"e/{task.id}/{sample}", task, f"g/{task.id}", sample, seed_of("test job", task.id, sample))
        for task in tasks
        for sample in range(samples)
    ]


def player(answer: Answer, *, batch: int = 64, env: Environment | None = None, **changes: object) -> Player:
    made = Player(
        env or environment(),
        prompter(),
        Scripted(answer),
        SAMPLING,
        MAX_TURNS,
        batch,
        Origin("test", 2, "sha256:policy", "sha256:data"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def played(one: Player, jobs: Iterable[Job]) -> dict[str, Played]:
    found = {result.episode.episode: result for result in one.play(jobs)}
    return dict(sorted(found.items()))


def transcript(task: Task, one: Played) -> Transcript:
    return Transcript(task, one.episode, one.turns)


def by_id(tasks: Iterable[Task]) -> dict[str, Task]:
    return {task.id: task for task in tasks}


def dumped(env: Env) -> bytes:
    state = env.dump()
    assert state is not None
    return state


def best(task: Task, env: Env, where: Environment | None = None) -> str:
    return (where or environment()).oracle(task).best_actions(dumped(env), None)[0]


def worse(task: Task, env: Env, result: StepResult) -> str:
    """An admissible action after which the task is farther away but still solvable."""
    oracle = environment().oracle(task)
    before = oracle.distance(dumped(env))
    mark = env.snapshot()
    assert before is not None
    assert result.admissible is not None
    for action in result.admissible:
        env.step(action)
        after = oracle.distance(dumped(env))
        env.restore(mark)
        if after is not None and after > before:
            return action
    raise AssertionError("no action makes it worse here")


def plan(task: Task, mistakes: Iterable[int] = (), turns: int = MAX_TURNS) -> list[str]:
    """The exact oracle's actions until the task is won, with a solvable mistake at each of some turns."""
    wrong = set(mistakes)
    env = environment().open()
    result = env.reset(task, 0)
    actions: list[str] = []
    while not result.done and len(actions) < turns:
        actions.append(worse(task, env, result) if len(actions) in wrong else best(task, env))
        result = env.step(actions[-1])
    return actions


def lose(task: Task, mistakes: Iterable[int], turns: int = MAX_TURNS) -> list[str]:
    """As :func:`plan`, but only idling after the last mistake, up to a number of turns."""
    last = max(mistakes, default=-1) + 1
    return plan(task, mistakes, last) + ["look"] * (turns - last)


def made_turn(index: int = 0, **changes: object) -> Turn:
    """A row written by hand."""
    row = Turn(
        run="test", iteration=2, episode="e", group="g", turn=index, source="rollout", seed=index,
        prompt_ids=[5, 6, 2], shown_pairs=0, response_ids=[7, 1], behaviour_logprobs_nats=[-0.5, -0.25],
        temperature=1.0, finish_reason="stop", instruction="Your task is to: do it.",
        observation=f"seen {index}",
        admissible=("go to fridge 1", "look"), response_text=reply("look"), text_escaped=False, action="look",
        committed=True, valid=True, reward=0.0, state_hash="h", snapshot=None,
        next_observation=f"seen {index + 1}", pivot_turn=None, depth=None, gold_action=None,
        hinted_prompt_ids=None,
    )  # fmt: skip
    return replace(row, **changes)  # type: ignore[arg-type]  # fields by name
