"""Our rollout against a lockstep loop: one that generates for every slot until all of them are done.

The loop is the peers' (:mod:`benchmarks.peer_loop`). Same engine, same seeds, same episodes: results are
compared token by token first. A student whose responses differ in length shows what waiting costs; those
whose responses are all alike show what the slots of finished episodes cost.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import util
from pathlib import Path
from statistics import pstdev

from benchmarks.iteration import CACHE, Bench, Shape, student_folder
from benchmarks.peer_loop import Lockstep
from benchmarks.ratios import Block, Cost, abba, speedup, worse
from benchmarks.ratios import measure as timed
from benchmarks.result import Count, Measure, Skipped
from benchmarks.wordy import BETTER, RESPONSE_TOKENS, wordy_student_folder
from pivotopd.ledger import Counts
from pivotopd.models.base import Generator, PolicyEngine
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.rollout import Job, Origin, Player, training_jobs
from stages.work import Source, Work

GATE, AIM = 2.0, 3.0
EQUAL_SHARE = 0.99
"""Of the turns: a draw on the border of two tokens may fall either way beside other responses."""
VLLM_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""Little memory (GiB), and one thread as everywhere."""
Responses = dict[tuple[str, int], tuple[int, ...]]
"""Response ids by episode and turn."""


@dataclass(frozen=True, slots=True)
class Case:
    """A student that both ways play with.

    Attributes:
        name: Name in the result.
        label: For people.
        shape: Episodes, turn limit, engine.
        student: Returns its folder.
        blocks: Blocks to time.
        judged: The ratio has a gate.
    """

    name: str
    label: str
    shape: Shape
    student: Callable[[], Path]
    blocks: int
    judged: bool = False


@dataclass
class _Rollouts:
    """Both ways of playing the same jobs."""

    work: Work
    source: Source
    batch: int
    tasks: int
    group_size: int
    won: int = 0
    admissible: int = 0
    lengths: list[list[int]] = field(default_factory=list)

    @property
    def engine(self) -> PolicyEngine:
        """The engine of both."""
        return self.work.engine(self.source)

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
        played = list(self.player(self.engine).play(self.jobs()))
        turns = [turn for one in played for turn in one.turns]
        self.won = sum(one.episode.won for one in played)
        self.admissible = sum(turn.committed and turn.action in (turn.admissible or ()) for turn in turns)
        return {(turn.episode, turn.turn): tuple(turn.response_ids) for turn in turns}

    def lockstep(self) -> Responses:
        loop = Lockstep(self.player(self.engine))
        found = {(episode, turn): ids for episode, turn, ids in loop.play(self.jobs())}
        self.lengths = loop.lengths
        return found

    def counted(self, play: Callable[[], Responses]) -> _Played:
        """Play once, and count what it took."""
        engine = self.engine  # which may have to load the policy again
        before = self.work.spent
        with _passes_of(engine) as passes:
            found = play()
        return _Played(found, self.work.spent - before, passes.total())


@dataclass(frozen=True, slots=True)
class _Played:
    """What one way played.

    Attributes:
        responses: Response ids by episode and turn.
        counts: The ledger's.
        passes: Forward passes of the model, prefill and decoding; 0 where another process makes them.
    """

    responses: Responses
    counts: Counts
    passes: int


@contextmanager
def _passes_of(engine: PolicyEngine) -> Iterator[Counter[str]]:
    """Count the forward passes of an engine in this process."""
    passes: Counter[str] = Counter()
    if not isinstance(engine, TransformersEngine):
        yield passes
        return

    def count(*_: object) -> None:
        passes["forward"] += 1

    hook = engine.loaded.model.base_model.register_forward_pre_hook(count)
    try:
        yield passes
    finally:
        hook.remove()


def measure(*, quick: bool = False) -> list[Measure]:
    """Return the ratio for a student of ragged responses, and for two whose responses are all short."""
    return [_measure(case, quick) for case in cases(quick=quick)]


def measure_vllm(*, quick: bool = False) -> list[Measure | Skipped]:
    """Return the ratio with vLLM as the engine."""
    case = vllm_case(quick=quick)
    if util.find_spec("vllm") is None:
        return [Skipped(f"rollout/lockstep/{case.name}", "vLLM is not installed (infra/vllm_cpu.sh)")]
    for name, value in VLLM_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return [_measure(case, quick)]


def cases(*, quick: bool = False) -> list[Case]:
    """Return the students; the better one has seen the gap less often, and plays to the peers' limit."""
    few = Shape(method="grpo", depth=0, tasks=2, group_size=2, max_turns=6)
    early = few if quick else replace(few, tasks=4, group_size=4, max_turns=30)
    late = replace(few, max_turns=8) if quick else replace(early, tasks=8, max_turns=50)
    return [
        Case("ragged", "responses of ragged lengths", _ragged(quick), wordy_student_folder, 5, judged=True),
        Case("early", "short responses, most episodes fail: finished slots alone", early, _plain, 5),
        Case("late", "short responses, most are won: finished slots alone", late, _better, 5),
    ]


def vllm_case(*, quick: bool = False) -> Case:
    """Return the case of ragged lengths with vLLM."""
    ragged = _ragged(quick)
    shape = replace(ragged, engine="vllm", max_turns=min(ragged.max_turns, 30))
    return Case("vllm", "the same with vLLM on this CPU", shape, wordy_student_folder, 3)


def _ragged(quick: bool) -> Shape:
    some = Shape(method="grpo", depth=0, tasks=8, group_size=4, max_turns=50, response_tokens=RESPONSE_TOKENS)
    return replace(some, tasks=2, group_size=2, max_turns=6) if quick else some


def _plain() -> Path:
    return student_folder(CACHE)


def _better() -> Path:
    return student_folder(CACHE, **BETTER)


def _measure(case: Case, quick: bool) -> Measure:
    bench, shape = Bench(case.student()), case.shape
    try:
        with bench.prepared(shape) as (work, plan):
            both = _Rollouts(work, plan.start(), shape.episodes, shape.tasks, shape.group_size)
            ours, theirs = both.counted(both.ours), both.counted(both.lockstep)
            counts = _counts(both, ours, theirs) | {"turn_limit": shape.max_turns}
            blocks = abba(
                partial(timed, lambda: len(both.ours())),
                partial(timed, lambda: len(both.lockstep())),
                2 if quick else case.blocks,
                warmup=0,  # both sides have just played
            )
    finally:
        bench.close()
    return _judged(case, blocks, counts)


def _judged(case: Case, blocks: list[Block[Cost]], counts: dict[str, Count]) -> Measure:
    """Return the ratio: of both clocks, or of the wall where the engine's CPU is another process's."""
    wall, cpu = speedup(blocks), speedup(blocks, clock="cpu_s")
    elsewhere = case.shape.engine == "vllm"
    told = wall if elsewhere else worse(wall, cpu)
    return Measure(
        name=f"rollout/lockstep/{case.name}",
        label=f"rollout against a lockstep loop that waits for all, {case.label}",
        value=told.median,
        low=told.low,
        high=told.high,
        gate=GATE if case.judged else None,
        aim=AIM if case.judged else None,
        clock="wall" if elsewhere else "cpu and wall",
        counts=counts
        | {
            "our_wall_s": round(sum(one.a.wall_s for one in blocks) / len(blocks) / 2, 2),
            "wall_ratio": round(wall.median, 3),
            "blocks": len(blocks),
        }
        | ({} if elsewhere else {"cpu_ratio": round(cpu.median, 3)}),
    )


def _counts(both: _Rollouts, ours: _Played, theirs: _Played) -> dict[str, Count]:
    """Return what both ways took.

    Raises:
        SystemExit: They did not play the same turns.
    """
    turns = len(ours.responses)
    same = sum(theirs.responses.get(key) == ids for key, ids in ours.responses.items())
    if same < EQUAL_SHARE * max(turns, len(theirs.responses)):
        raise SystemExit(f"only {same} of {turns} turns are equal, nothing was measured")
    chains: Counter[str] = Counter()
    for (episode, _), ids in ours.responses.items():
        chains[episode] += len(ids)
    lengths = [len(ids) for ids in ours.responses.values()]
    longest = [max(one) for one in both.lengths]
    return {
        "episodes": both.tasks * both.group_size,
        "won": both.won,
        "slots": both.batch,
        "turns": turns,
        "equal_turns": same,
        "admissible_percent": round(100 * both.admissible / turns, 1),
        "response_tokens_mean": round(sum(lengths) / turns, 1),
        "response_tokens_sd": round(pstdev(lengths), 1),
        "response_tokens_longest": max(lengths),
        "steps_at_least": max(chains.values()),
        "lockstep_steps": sum(longest),
        "longest_of_a_round_mean": round(sum(longest) / len(longest), 1),
        "passes": ours.passes,
        "lockstep_passes": theirs.passes,
        "batches": ours.counts.rounds,
        "lockstep_rounds": theirs.counts.rounds,
        "responses": ours.counts.prompts,
        "lockstep_responses": theirs.counts.prompts,
        "generated_tokens": ours.counts.generated_tokens,
        "lockstep_generated_tokens": theirs.counts.generated_tokens,
        "idle_tokens": ours.counts.idle_tokens,
        "lockstep_idle_tokens": theirs.counts.idle_tokens,
        "response_ratio": round(theirs.counts.prompts / ours.counts.prompts, 3),
        "step_ratio": round(sum(longest) / max(chains.values()), 3),
    }
