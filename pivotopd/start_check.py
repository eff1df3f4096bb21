"""Does a warm-started student have one clean gap? It plays held-out games, with and without hints.

A start from which PivotOPD learns fails often, by pivotal mistakes that it does not undo, and is competent in
all else: its actions are admissible, and it follows a hint (docs/method.md, The tiny student).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pivotopd.agent.prompting import Prompter
from pivotopd.diagnosis.mistakes import find_mistakes
from pivotopd.diagnosis.recovery import RecoveryRate, recovery_jobs, summarise_recovery
from pivotopd.environments.base import Environment, Task
from pivotopd.evaluation import panel_jobs, summarise_panel, unbroken
from pivotopd.models.base import Generator, Request, Sampling
from pivotopd.rollout import Job, Origin, Played, Player
from pivotopd.seeds import rng_of, seed_of
from pivotopd.teacher.base import Transcript

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
_BATCH_EPISODES: Final = 128


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


@dataclass(frozen=True)
class StartCheck:
    """Plays with one student.

    Args:
        environment: The environment; of its tasks only those that :meth:`run` is given are played.
        prompter: Builds the student's prompts.
        generator: The student.
        max_turns: Turn limit of an episode.
        response_tokens: Longest response.
        seed: Seed of all draws.
    """

    environment: Environment
    prompter: Prompter
    generator: Generator
    max_turns: int
    response_tokens: int
    seed: int

    def run(self, tasks: Sequence[Task]) -> StartReport:
        """Play each task once, then give hints and replay mistakes.

        Raises:
            EnvironmentFault: A game cannot be used.
        """
        played = self._play(panel_jobs(tasks, samples=1, seed=self.seed), "episodes of the start check")
        panel = summarise_panel(played)
        turns = [turn for one in played for turn in one.turns]
        # Stricter than the panel's share: a bare action without its tags does not count.
        admissible = sum(turn.committed and turn.action in (turn.admissible or ()) for turn in turns)
        hints, obeyed = self._obeyed(played)
        recovery = self._recovery(tasks, played)
        return StartReport(
            games=panel.episodes,
            success=panel.success,
            admissible=admissible / max(1, len(turns)),
            hints=hints,
            obeyed=obeyed,
            mistakes=0 if recovery is None else recovery.mistakes,
            recovery=None if recovery is None else recovery.rate,
        )

    @property
    def _sampling(self) -> Sampling:
        return Sampling(temperature=1.0, max_tokens=self.response_tokens)

    def _play(self, jobs: Sequence[Job], what: str) -> list[Played]:
        player = Player(
            self.environment,
            self.prompter,
            self.generator,
            self._sampling,
            self.max_turns,
            _BATCH_EPISODES,
            Origin("start check", -1, "", ""),  # no row of it is stored
        )
        return unbroken(player.play(jobs), what)

    def _obeyed(self, played: Sequence[Played]) -> tuple[int, float]:
        """Ask again at some turns, with a random admissible action as the hint."""
        turns = [(one.turns, index) for one in played for index in range(len(one.turns))]
        rng = rng_of("start check hints", self.seed)
        hints: list[str] = []
        requests: list[Request] = []
        for place in sorted(rng.permutation(len(turns))[:HINTS].tolist()):
            prompt = self.prompter.rebuilt(*turns[place])
            actions = prompt.view.admissible or ()
            hint = actions[int(rng.integers(len(actions)))]
            ids = self.prompter.hinted(prompt, hint=hint)
            if ids is not None:
                hints.append(hint)
                requests.append(Request(ids, seed_of("start check hinted", self.seed, place)))
        wording, codec = self.prompter.wording, self.prompter.codec
        completions = self.generator.generate(requests, self._sampling)
        replies = [wording.parse(codec.decode(one.response_ids.tolist())[0]) for one in completions]
        obeyed = [
            wording.normal_form(reply.action) == wording.normal_form(hint)
            for reply, hint in zip(replies, hints, strict=True)
        ]
        return len(obeyed), sum(obeyed) / max(1, len(obeyed))

    def _recovery(self, tasks: Sequence[Task], played: Sequence[Played]) -> RecoveryRate | None:
        """Go on from after the first pivotal mistake of some episodes, several times each."""
        by_id = {task.id: task for task in tasks}
        transcripts = [Transcript(by_id[one.episode.task], one.episode, one.turns) for one in played]
        # Also of won episodes: a mistake that was undone is what the check looks for.
        mistakes, _ = find_mistakes(self.environment, transcripts, limit=MISTAKES, also_won=True)
        jobs = recovery_jobs(mistakes, replays=REPLAYS, seed=self.seed, how="snapshot")
        return summarise_recovery(self._play(jobs, "replays of the start check"), replays=REPLAYS)
