"""Play episodes: many in flight, each going on when its own response ends, every draw from its own seed.

The result of an episode does not depend on which others play beside it. A broken environment ends its episode
with a reason; it does not end the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Generator as Steps
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice

from pivotopd.agent.prompting import Prompt, Prompter
from pivotopd.environments.ahead import Answer, begin_reset, begin_step
from pivotopd.environments.base import Env, Environment, PlayedTurn, Reply, StepResult, Task
from pivotopd.errors import EnvironmentFault
from pivotopd.models.base import Completion, Generator, Request, Sampling
from pivotopd.models.in_flight import begin
from pivotopd.records import Episode, Turn
from pivotopd.seeds import seed_of

Forced = Callable[[Env, int], str | None]
"""What to do at a turn in place of asking the policy, from the environment and the index; None asks it."""


@dataclass(frozen=True, slots=True)
class Start:
    """A state in the middle of an episode from which a policy goes on alone.

    Attributes:
        turns: The turns before it, recorded or an expert's.
        open_at: Brings a fresh instance to the state.
    """

    turns: Sequence[Turn | PlayedTurn]
    open_at: Callable[[Env], StepResult]


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play.

    Attributes:
        episode: Its id.
        task: The task.
        group: Id of its group.
        sample: Its index in the group.
        seed: Decides its random draws.
        start: Where it begins; None is the task's beginning.
        skills: Skills that stand in its prompts.
        forced: Takes over single turns; their rows have the source ``forced`` and no tokens.
    """

    episode: str
    task: Task
    group: str
    sample: int
    seed: int
    start: Start | None = None
    skills: tuple[str, ...] = ()
    forced: Forced | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """An episode and the turns that were played here (without those before a :class:`Start`)."""

    episode: Episode
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What every row of a rollout says about where it comes from."""

    run: str
    iteration: int
    policy: str
    data_fingerprint: str


@dataclass(slots=True)
class _Live:
    """An episode in play."""

    job: Job
    env: Env
    result: StepResult
    pairs: list[tuple[str, str]]
    turn: int
    turns: list[Turn] = field(default_factory=list)
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class _Move:
    """What is done at a turn, and the tokens that said so; a forced one has none."""

    source: str
    reply: Reply
    prompt_ids: Sequence[int] = ()
    response_ids: Sequence[int] = ()
    logprobs_nats: Sequence[float] = ()
    finish_reason: str = "forced"
    text: str = ""
    escaped: bool = False


@dataclass(frozen=True, slots=True)
class _Before:
    """The state that an action was sent in, and what waits for its answer."""

    snapshot: bytes | None
    state_hash: str
    answer: Answer


@dataclass
class Player:
    """Plays jobs with one policy.

    Args:
        environment: The environment.
        prompter: Builds the student's prompts.
        generator: The policy.
        sampling: Temperature and length of responses.
        max_turns: Turn limit of an episode.
        batch_episodes: Episodes in flight at once.
        origin: Fields that every row carries.
    """

    environment: Environment
    prompter: Prompter
    generator: Generator
    sampling: Sampling
    max_turns: int
    batch_episodes: int
    origin: Origin

    def play(self, jobs: Iterable[Job]) -> Steps[Played, None, None]:
        """Play all jobs and yield each episode when it ends, in no particular order.

        Who stops listening closes it: what is in flight is given up.
        """
        waiting, numbers = iter(jobs), count()
        flight = begin(self.generator, self.sampling)
        asked: dict[int, _Live] = {}
        ready: list[_Live] = []
        more = True
        try:
            while more or ready or asked:
                while more and (room := self.batch_episodes - len(ready) - len(asked)):
                    opening = [self._begin(job) for job in islice(waiting, room)]
                    more = len(opening) == room
                    opened = [open_now() for open_now in opening]
                    ready += [one for one in opened if isinstance(one, _Live)]
                    yield from (one for one in opened if isinstance(one, Played))
                moves, asking, ended = self._choose(ready)
                yield from ended
                sent = {next(numbers): one for one in asking}
                asked |= sent
                flight.send({number: _request(one) for number, one in sent.items()})
                if asked and not moves:  # nothing goes on before the policy has answered
                    landed = [(asked.pop(key), said) for key, said in flight.land().items()]
                    moves = [(one, self._move(one, said)) for one, said in landed]
                ready, ended = self._answered(moves)
                yield from ended
        finally:
            flight.close()

    def _begin(self, job: Job) -> Callable[[], _Live | Played]:
        """Begin to open an episode; instances in processes do so at the same time."""
        env = self.environment.open()
        started = begin_reset(env, job.task, job.seed) if job.start is None else None
        return partial(self._opened, job, env, started)

    def _opened(self, job: Job, env: Env, started: Answer | None) -> _Live | Played:
        try:
            if started is not None:
                return _Live(job, env, started(), [], 0)
            assert job.start is not None  # noqa: S101 - else it was started
            pairs = [(turn.observation, turn.action) for turn in job.start.turns]
            one = _Live(job, env, job.start.open_at(env), pairs, len(pairs))
        except EnvironmentFault as fault:
            env.close()
            return Played(self._episode(job, [], None, "environment_error", str(fault)), ())
        over = self._over(one)
        return one if over is None else self._end(one, over)

    def _choose(self, ready: Sequence[_Live]) -> tuple[list[tuple[_Live, _Move]], list[_Live], list[Played]]:
        """Return the forced moves, the episodes whose policy is to be asked, and those that end here."""
        moves: list[tuple[_Live, _Move]] = []
        asking: list[_Live] = []
        ended: list[Played] = []
        for one in ready:
            try:
                action = one.job.forced(one.env, one.turn) if one.job.forced else None
            except EnvironmentFault as fault:
                ended.append(self._end(one, "environment_error", str(fault)))
                continue
            if action is not None:
                moves.append((one, _Move("forced", Reply(action, committed=True, valid=True, thought=""))))
                continue
            one.prompt = self._prompt(one)
            if one.prompt is None:
                ended.append(self._end(one, "prompt_too_long"))
            else:
                asking.append(one)
        return moves, asking, ended

    def _answered(self, moves: Sequence[tuple[_Live, _Move]]) -> tuple[list[_Live], list[Played]]:
        """Do what was chosen; return the episodes that go on and those that ended."""
        going: list[_Live] = []
        ended: list[Played] = []
        stepping = [(one, move, self._begin_step(one, move)) for one, move in moves]
        for one, move, before in stepping:
            try:
                self._step(one, move, before)
            except EnvironmentFault as fault:
                ended.append(self._end(one, "environment_error", str(fault)))
                continue
            termination = self._over(one)
            if termination is None:
                going.append(one)
            else:
                ended.append(self._end(one, termination))
        return going, ended

    def _prompt(self, one: _Live) -> Prompt | None:
        return self.prompter.plain(
            self.environment.instruction(one.job.task),
            one.pairs,
            one.turn,
            one.result.observation,
            one.result.admissible,
            one.job.skills,
        )

    def _move(self, one: _Live, completion: Completion) -> _Move:
        assert one.prompt is not None  # noqa: S101 - it was asked under it
        text, escaped = self.prompter.codec.decode(completion.response_ids.tolist())
        return _Move(
            "rollout",
            self.prompter.wording.parse(text),
            one.prompt.ids,
            completion.response_ids.tolist(),
            completion.logprobs_nats.tolist(),
            completion.finish_reason,
            text,
            escaped,
        )

    @staticmethod
    def _begin_step(one: _Live, move: _Move) -> _Before | EnvironmentFault:
        """Begin to send a move's action; instances in processes take it at the same time."""
        try:
            return _Before(one.env.dump(), one.env.state_hash(), begin_step(one.env, move.reply.action))
        except EnvironmentFault as fault:
            return fault

    def _step(self, one: _Live, move: _Move, stood: _Before | EnvironmentFault) -> None:
        """Wait for what an action is answered, and keep the row."""
        if isinstance(stood, EnvironmentFault):
            raise stood
        before, after = one.result, stood.answer()
        one.turns.append(
            Turn(
                run=self.origin.run,
                iteration=self.origin.iteration,
                episode=one.job.episode,
                group=one.job.group,
                turn=one.turn,
                source=move.source,
                seed=_response_seed(one),
                prompt_ids=move.prompt_ids,
                shown_pairs=len(one.prompt.view.history) if one.prompt else 0,
                response_ids=move.response_ids,
                behaviour_logprobs_nats=move.logprobs_nats,
                temperature=self.sampling.temperature,
                finish_reason=move.finish_reason,
                instruction=self.environment.instruction(one.job.task),
                observation=before.observation,
                admissible=before.admissible,
                response_text=move.text,
                text_escaped=move.escaped,
                action=move.reply.action,
                committed=move.reply.committed,
                valid=move.reply.valid,
                reward=after.reward,
                state_hash=stood.state_hash,
                snapshot=stood.snapshot,
                next_observation=after.observation,
                pivot_turn=None,
                depth=None,
                gold_action=None,
                hinted_prompt_ids=None,
            )
        )
        one.pairs.append((before.observation, move.reply.action))
        one.result = after
        one.turn += 1

    def _over(self, one: _Live) -> str | None:
        """Return why an episode is over where it stands, or None."""
        if one.result.won:
            return "won"
        if one.result.done:
            return "done"
        return "turn_limit" if one.turn >= self.max_turns else None

    def _end(self, one: _Live, termination: str, error: str | None = None) -> Played:
        one.env.close()
        episode = self._episode(one.job, one.turns, one.result, termination, error)
        return Played(episode, tuple(one.turns))

    def _episode(
        self, job: Job, turns: Sequence[Turn], result: StepResult | None, termination: str, error: str | None
    ) -> Episode:
        spec = self.environment.spec
        return Episode(
            run=self.origin.run,
            iteration=self.origin.iteration,
            episode=job.episode,
            task=job.task.id,
            task_hash=job.task.content_hash,
            family=job.task.family,
            group=job.group,
            sample=job.sample,
            seed=job.seed,
            episode_return=sum(turn.reward for turn in turns),
            won=bool(result and result.won),
            score=result.score if result else 0.0,
            termination=termination,
            error=error,
            turns=len(turns),
            environment=f"{spec.name} {spec.version}",
            data_fingerprint=self.origin.data_fingerprint,
            policy=self.origin.policy,
        )


def _response_seed(one: _Live) -> int:
    return seed_of("response", one.job.seed, one.turn)


def _request(one: _Live) -> Request:
    assert one.prompt is not None  # noqa: S101 - else the episode has ended
    return Request(one.prompt.ids, _response_seed(one))


def _shuffled(tasks: Sequence[Task], run_seed: int, lap: int) -> list[Task]:
    return sorted(tasks, key=lambda task: seed_of("task order", run_seed, lap, task.id))


def training_jobs(
    tasks: Sequence[Task], *, run_seed: int, iteration: int, count: int, group_size: int
) -> list[Job]:
    """Return the jobs of an iteration: ``count`` tasks, ``group_size`` episodes each.

    Tasks are walked in a fixed shuffled order that starts anew, reshuffled, when all were played. A task that
    comes twice in one iteration goes on with the next sample numbers, in its seeds only.
    """
    jobs = []
    came: Counter[str] = Counter()
    laps: dict[int, list[Task]] = {}
    for position in range(iteration * count, (iteration + 1) * count):
        lap, place = divmod(position, len(tasks))
        if lap not in laps:
            laps[lap] = _shuffled(tasks, run_seed, lap)
        task = laps[lap][place]
        group = f"{iteration:04d}/{position - iteration * count:03d}"
        for sample in range(group_size):
            seed = seed_of("episode", run_seed, iteration, task.id, came[task.id] + sample)
            jobs.append(Job(f"{group}/{sample:02d}", task, group, sample, seed))
        came[task.id] += group_size
    return jobs
