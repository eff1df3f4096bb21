"""Does a warm-started student have one clean gap? It plays held-out games, with and without hints.

A start from which PivotOPD learns fails often, by pivotal mistakes that it does not undo, and is competent in
all else: its actions are admissible, and it follows a hint (docs/method.md, The tiny student).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from pivotopd.agent.prompting import Prompt, Prompter
from pivotopd.environments.alfworld.engine import WordingStyle, engine_of
from pivotopd.environments.alfworld.native import NativeEnv, Snapshot
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.base import Reply, StepResult, Task
from pivotopd.models.base import Codec, Generator, Request, Sampling
from pivotopd.seeds import rng_of, seed_of

SUCCESS_RANGE: Final = (0.3, 0.5)
LARGEST_RECOVERY: Final = 0.05
LEAST_ADMISSIBLE: Final = 0.97
LEAST_OBEYED: Final = 0.95

MISTAKES: Final = 32
"""Most mistakes that are replayed."""
REPLAYS: Final = 4
"""Replays of each mistake."""
HINTS: Final = 256
"""Turns of its own play at which the student is asked again, with a hint."""


@dataclass(frozen=True, slots=True)
class StartReport:
    """What the check found, all at temperature 1.

    Attributes:
        games: Held-out games, one episode each.
        success: Share of them that the student won.
        admissible: Share of its turns whose action was admissible.
        hints: Hints that were given, each a random admissible action.
        obeyed: Share of them that the reply's action equals.
        mistakes: Pivotal mistakes (one an episode at most) that were replayed.
        recovery: Share of the replays that won in the turns left; None without a mistake.
    """

    games: int
    success: float
    admissible: float
    hints: int
    obeyed: float
    mistakes: int
    recovery: float | None

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """What lies outside the wanted ranges, one sentence each; empty for a good start."""
        low, high = SUCCESS_RANGE
        found = []
        if not low <= self.success <= high:
            found.append(f"success is {self.success:.2f}, wanted {low} to {high}")
        if self.recovery is None:
            found.append("the student made no pivotal mistake, so there is nothing to recover from")
        elif self.recovery > LARGEST_RECOVERY:
            found.append(f"recovery is {self.recovery:.2f}, wanted at most {LARGEST_RECOVERY}")
        if self.admissible < LEAST_ADMISSIBLE:
            found.append(f"admissible actions are {self.admissible:.3f}, wanted at least {LEAST_ADMISSIBLE}")
        if self.obeyed < LEAST_OBEYED:
            found.append(f"hints obeyed are {self.obeyed:.3f}, wanted at least {LEAST_OBEYED}")
        return tuple(found)


@dataclass(slots=True)
class _Episode:
    """One episode in progress; a replay starts with the turns up to its mistake."""

    task: Task
    env: NativeEnv
    now: StepResult
    key: int
    pairs: list[tuple[str, str]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    admissible: int = 0
    cut: bool = False


@dataclass(frozen=True)
class StartCheck:
    """Plays with one student.

    Args:
        generator: The student.
        codec: Its tokenizer.
        prompter: Builds its prompts.
        max_turns: Turn limit of an episode.
        response_tokens: Longest response.
        seed: Seed of all draws.
        wording: Style of commands and feedback.
    """

    generator: Generator
    codec: Codec
    prompter: Prompter
    max_turns: int
    response_tokens: int
    seed: int
    wording: WordingStyle = "move"

    def run(self, tasks: Sequence[Task]) -> StartReport:
        """Play each task once, then give hints and replay mistakes.

        Raises:
            GameError: A game cannot be used.
        """
        episodes = [self._start(task, index) for index, task in enumerate(tasks)]
        self._play(episodes)
        turns = sum(len(episode.replies) for episode in episodes)
        hints, obeyed = self._obeyed(episodes)
        mistakes, recovery = self._recovery(episodes)
        return StartReport(
            games=len(episodes),
            success=sum(episode.now.won for episode in episodes) / max(1, len(episodes)),
            admissible=sum(episode.admissible for episode in episodes) / max(1, turns),
            hints=hints,
            obeyed=obeyed,
            mistakes=mistakes,
            recovery=recovery,
        )

    def _start(self, task: Task, key: int) -> _Episode:
        env = NativeEnv(self.wording)
        return _Episode(task, env, env.reset(task, 0), key)

    def _play(self, episodes: Sequence[_Episode]) -> None:
        """Play all episodes to their ends, one turn of all of them at a time."""
        while live := [e for e in episodes if not (e.now.done or e.cut or len(e.pairs) >= self.max_turns)]:
            asked: list[tuple[_Episode, Prompt]] = []
            for episode in live:
                prompt = self._prompt(episode)
                if prompt is None:
                    episode.cut = True
                else:
                    asked.append((episode, prompt))
            seeds = [seed_of("start check", self.seed, e.key, len(e.pairs)) for e, _ in asked]
            requests = [Request(p.ids, seed) for (_, p), seed in zip(asked, seeds, strict=True)]
            for (episode, prompt), reply in zip(asked, self._ask(requests), strict=True):
                episode.snapshots.append(episode.env.snapshot())
                episode.prompts.append(prompt)
                episode.replies.append(reply)
                episode.admissible += reply.committed and reply.action in (episode.now.admissible or ())
                episode.pairs.append((episode.now.observation, reply.action))
                episode.now = episode.env.step(reply.action)

    def _prompt(self, episode: _Episode) -> Prompt | None:
        return self.prompter.plain(
            self._instruction(episode.task),
            episode.pairs,
            len(episode.pairs),
            episode.now.observation,
            episode.now.admissible,
        )

    @staticmethod
    def _instruction(task: Task) -> str:
        sentence: str = task.payload.task_sentence
        return sentence

    def _ask(self, requests: Sequence[Request]) -> list[Reply]:
        sampling = Sampling(1.0, self.response_tokens)
        completions = self.generator.generate(requests, sampling)
        texts = [self.codec.decode(completion.response_ids.tolist())[0] for completion in completions]
        return [self.prompter.wording.parse(text) for text in texts]

    def _obeyed(self, episodes: Sequence[_Episode]) -> tuple[int, float]:
        """Ask again at some turns, with a random admissible action as the hint."""
        turns = [prompt for episode in episodes for prompt in episode.prompts]
        rng = rng_of("start check hints", self.seed)
        picked = rng.permutation(len(turns))[:HINTS]
        hints: list[str] = []
        requests: list[Request] = []
        for index in sorted(picked.tolist()):
            actions = turns[index].view.admissible or ()
            hint = actions[int(rng.integers(len(actions)))]
            ids = self.prompter.hinted(turns[index], hint=hint)
            if ids is not None:
                hints.append(hint)
                requests.append(Request(ids, seed_of("start check hinted", self.seed, index)))
        normal = self.prompter.wording.normal_form
        replies = self._ask(requests)
        obeyed = [normal(reply.action) == normal(hint) for reply, hint in zip(replies, hints, strict=True)]
        return len(obeyed), sum(obeyed) / max(1, len(obeyed))

    def _recovery(self, episodes: Sequence[_Episode]) -> tuple[int, float | None]:
        """Go on from after the first pivotal mistake of some episodes, several times each."""
        found = [(e, turn) for e in episodes if (turn := self._first_mistake(e)) is not None]
        order = rng_of("start check mistakes", self.seed).permutation(len(found))[:MISTAKES]
        replays = [
            self._after(episode, turn, seed_of("start check replay", self.seed, episode.key, sample))
            for episode, turn in (found[index] for index in sorted(order.tolist()))
            for sample in range(REPLAYS)
        ]
        self._play(replays)
        if not replays:
            return 0, None
        return len(order), sum(replay.now.won for replay in replays) / len(replays)

    def _first_mistake(self, episode: _Episode) -> int | None:
        """Return the first turn after which the true distance to the goal is larger, with turns left."""
        game = episode.task.payload
        oracle = Oracle(engine_of(game.pddl_problem, game.task_sentence, game.id, self.wording).world)
        states = [snapshot.state for snapshot in episode.snapshots] + [episode.env.snapshot().state]
        for turn, (before, after) in enumerate(pairwise(states)):
            if oracle.classify(before, after) in {"regress", "dead"}:
                return turn if turn + 1 < self.max_turns else None
        return None

    def _after(self, episode: _Episode, turn: int, key: int) -> _Episode:
        """Return a new episode that stands right after a turn of another."""
        replay = self._start(episode.task, key)
        replay.pairs = episode.pairs[: turn + 1]
        later = [*episode.snapshots, episode.env.snapshot()]
        replay.now = replay.env.restore(later[turn + 1])
        return replay
