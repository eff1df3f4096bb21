"""The rollout loop of the peers (verl-agent and its forks): rounds, in which all slots wait for each other.

A wave of episodes starts together. In every round the engine writes a response for each slot, those of
finished episodes too, and when the last one is written all environments make a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pivotopd.environments.base import Env, StepResult
from pivotopd.models.base import Request
from pivotopd.rollout import Job, Player
from pivotopd.seeds import seed_of


@dataclass
class _Slot:
    """A slot of the loop: an episode, and what it last asked, which is asked again once it is over."""

    job: Job
    env: Env
    result: StepResult
    pairs: list[tuple[str, str]]
    prompt_ids: Sequence[int] = ()
    over: bool = False


@dataclass
class Lockstep:
    """The loop.

    A finished episode's environment makes no step, which is to the loop's advantage.

    Args:
        player: Gives environment, prompts, engine and limits; only the order of the work is the loop's own.

    Attributes:
        lengths: Tokens of all responses of each round.
    """

    player: Player
    lengths: list[list[int]] = field(default_factory=list)

    def play(self, jobs: Sequence[Job]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Yield (episode, turn, response ids) of every turn that counts."""
        size = self.player.batch_episodes
        for start in range(0, len(jobs), size):
            slots = [self._open(job) for job in jobs[start : start + size]]
            turn = 0
            while not all(slot.over for slot in slots):
                yield from self._round(slots, turn)
                turn += 1

    def _open(self, job: Job) -> _Slot:
        env = self.player.environment.open()
        return _Slot(job, env, env.reset(job.task, job.seed), [])

    def _round(self, slots: Sequence[_Slot], turn: int) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        one = self.player
        for slot in slots:
            if slot.over:
                continue
            told = one.environment.instruction(slot.job.task)
            prompt = one.prompter.plain(
                told, slot.pairs, turn, slot.result.observation, slot.result.admissible
            )
            if prompt is None:
                slot.over = True
            else:
                slot.prompt_ids = prompt.ids
        requests = [Request(slot.prompt_ids, seed_of("response", slot.job.seed, turn)) for slot in slots]
        completions = one.generator.generate(requests, one.sampling)
        self.lengths.append([len(completion.response_ids) for completion in completions])
        for slot, completion in zip(slots, completions, strict=True):
            if slot.over:
                continue
            ids = tuple(completion.response_ids.tolist())
            yield slot.job.episode, turn, ids
            text, _ = one.prompter.codec.decode(ids)
            reply = one.prompter.wording.parse(text)
            before = slot.result.observation
            slot.result = slot.env.step(reply.action)
            slot.pairs.append((before, reply.action))
            slot.over = slot.result.done or slot.result.won or turn + 1 >= one.max_turns
