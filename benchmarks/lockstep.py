"""Our rollout against a lockstep loop: one that generates for every slot until all of them are done.

The loop is the peers' (verl-agent and its forks): a wave of episodes starts together, finished episodes keep
their slot and get a response in every round, and the next wave waits for the last one. Same engine, same
seeds, same episodes: results are compared token by token first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.iteration import CACHE, Bench, Shape, student_folder
from benchmarks.ratios import abba, speedup, worse
from benchmarks.ratios import measure as timed
from benchmarks.result import Measure
from pivotopd.environments.base import Env, StepResult
from pivotopd.ledger import Counts
from pivotopd.models.base import Generator, Request
from pivotopd.rollout import Job, Origin, Player, training_jobs
from pivotopd.seeds import seed_of
from stages.work import Source, Work

GATE, AIM = 2.0, 3.0
Responses = dict[tuple[str, int], tuple[int, ...]]
"""Response ids by episode and turn."""


@dataclass(frozen=True, slots=True)
class Case:
    """A student that both ways play with.

    Attributes:
        name: Name in the result.
        label: For people.
        shape: Episodes and turn limit.
        warm_start: Keys of the section ``warm_start`` that make the student.
    """

    name: str
    label: str
    shape: Shape
    warm_start: Mapping[str, object]


@dataclass
class _Slot:
    """A slot of the loop: an episode, and what it last asked, which is asked again once it is over."""

    job: Job
    env: Env
    result: StepResult
    pairs: list[tuple[str, str]]
    prompt_ids: Sequence[int] = ()
    turn: int = 0
    over: bool = False


@dataclass
class Lockstep:
    """The loop.

    Args:
        player: Gives environment, prompts, engine and limits; only the order of the work is the loop's own.
    """

    player: Player

    def play(self, jobs: Sequence[Job]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Yield (episode, turn, response ids) of every turn that counts."""
        size = self.player.batch_episodes
        for start in range(0, len(jobs), size):
            slots = [self._open(job) for job in jobs[start : start + size]]
            while not all(slot.over for slot in slots):
                yield from self._round(slots)

    def _open(self, job: Job) -> _Slot:
        env = self.player.environment.open()
        return _Slot(job, env, env.reset(job.task, job.seed), [])

    def _round(self, slots: Sequence[_Slot]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        one = self.player
        for slot in slots:
            if slot.over:
                continue
            told = one.environment.instruction(slot.job.task)
            prompt = one.prompter.plain(
                told, slot.pairs, slot.turn, slot.result.observation, slot.result.admissible
            )
            if prompt is None:
                slot.over = True
            else:
                slot.prompt_ids = prompt.ids
        requests = [Request(slot.prompt_ids, seed_of("response", slot.job.seed, slot.turn)) for slot in slots]
        for slot, completion in zip(slots, one.generator.generate(requests, one.sampling), strict=True):
            if slot.over:
                continue
            ids = tuple(int(index) for index in completion.response_ids)
            yield slot.job.episode, slot.turn, ids
            text, _ = one.prompter.codec.decode(ids)
            reply = one.prompter.wording.parse(text)
            before = slot.result.observation
            slot.result = slot.env.step(reply.action)
            slot.pairs.append((before, reply.action))
            slot.turn += 1
            slot.over = slot.result.done or slot.result.won or slot.turn >= one.max_turns


@dataclass
class _Rollouts:
    """Both ways of playing the same jobs."""

    work: Work
    source: Source
    batch: int
    tasks: int
    group_size: int
    won: int = 0

    def player(self, generator: Generator) -> Player:
        work, split = self.work, self.work.config.environment.train_split
        origin = Origin("bench", 0, self.source.digest, work.environment.data_fingerprint(split))
        limit = work.config.environment.max_turns
        return Player(
            work.environment, work.prompter(self.source), generator, work.sampling, limit, self.batch, origin
        )

    def jobs(self) -> list[Job]:
        tasks = self.work.environment.tasks(self.work.config.environment.train_split)
        return training_jobs(tasks, run_seed=0, iteration=0, count=self.tasks, group_size=self.group_size)

    def ours(self) -> Responses:
        played = list(self.player(self.work.engine(self.source)).play(self.jobs()))
        self.won = sum(one.episode.won for one in played)
        return {
            (one.episode.episode, turn.turn): tuple(turn.response_ids) for one in played for turn in one.turns
        }

    def lockstep(self) -> Responses:
        player = self.player(self.work.engine(self.source))
        return {(episode, turn): ids for episode, turn, ids in Lockstep(player).play(self.jobs())}

    def counted(self, play: Callable[[], Responses]) -> tuple[Responses, Counts]:
        before = self.work.spent
        found = play()
        return found, self.work.spent - before


def measure(*, quick: bool = False) -> list[Measure]:
    """Return the ratio for a student that fails often and for one that wins most of its episodes."""
    return [_measure(case, quick) for case in cases(quick=quick)]


def cases(*, quick: bool = False) -> list[Case]:
    """Return both students; the better one has seen the gap less often, and plays to the peers' limit."""
    few = Shape(method="grpo", depth=0, tasks=2, group_size=2) if quick else Shape(method="grpo", depth=0)
    better = {"gap_share": 0.7, "hinted_share": 0.0, "games": 600, "steps": 1000}
    return [
        Case("early", "a student that fails often", replace(few, max_turns=6 if quick else 30), {}),
        Case(
            "late",
            "one that wins most",
            replace(few, tasks=2 if quick else 8, max_turns=8 if quick else 50),
            better,
        ),
    ]


def _measure(case: Case, quick: bool) -> Measure:
    bench, shape = Bench(student_folder(CACHE, **case.warm_start)), case.shape
    try:
        with bench.prepared(shape) as (work, plan):
            both = _Rollouts(work, plan.start(), shape.episodes, shape.tasks, shape.group_size)
            ours, our_counts = both.counted(both.ours)
            theirs, their_counts = both.counted(both.lockstep)
            same = sum(theirs.get(key) == ids for key, ids in ours.items())
            if same < 0.99 * max(len(ours), len(theirs)):
                raise SystemExit(f"only {same} of {len(ours)} turns are equal, nothing was measured")
            blocks = abba(
                partial(timed, lambda: len(both.ours())),
                partial(timed, lambda: len(both.lockstep())),
                2 if quick else 7,
                warmup=0,  # both sides have just played
            )
    finally:
        bench.close()
    judged = worse(wall := speedup(blocks), cpu := speedup(blocks, clock="cpu_s"))
    return Measure(
        name=f"rollout/lockstep/{case.name}",
        label=f"rollout against a lockstep loop that waits for all, {case.label}",
        value=judged.median,
        low=judged.low,
        high=judged.high,
        gate=GATE,
        aim=AIM,
        clock="cpu and wall",
        counts={
            "episodes": shape.episodes,
            "won": both.won,
            "slots": both.batch,
            "turn_limit": shape.max_turns,
            "turns": len(ours),
            "equal_turns": same,
            "rounds": our_counts.rounds,
            "lockstep_rounds": their_counts.rounds,
            "responses": our_counts.prompts,
            "lockstep_responses": their_counts.prompts,
            "generated_tokens": our_counts.generated_tokens,
            "lockstep_generated_tokens": their_counts.generated_tokens,
            "response_ratio": round(their_counts.prompts / our_counts.prompts, 3),
            "wall_ratio": round(wall.median, 3),
            "cpu_ratio": round(cpu.median, 3),
            "blocks": len(blocks),
        },
        note="the loop gains with the share of failures: a failed episode uses its slot to the end",
    )
