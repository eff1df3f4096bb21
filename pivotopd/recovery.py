"""Recovery chains: after each pivotal turn, a hinted copy of the student writes what to do next.

Paper sections 3.2-3.3 and Algorithm 1; see docs/method.md, Recovery chains.

All chains advance together, one depth at a time. Depth 1 starts from the recorded context after the mistake
and needs no environment; deeper turns restore or replay the state once a chain and keep that instance. A
response is kept when it commits to an action and does not mention its hint; its row carries the prompt
without the hint.
"""

from __future__ import annotations

from collections.abc import Generator as Steps
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pivotopd.agent.prompting import Prompt, Prompter
from pivotopd.environments.ahead import Answer, begin_step
from pivotopd.environments.base import Env, Environment
from pivotopd.environments.replay import Reach, begin_reach
from pivotopd.errors import EnvironmentFault, ReplayDivergence
from pivotopd.models.base import Completion, Generator, Request, Sampling
from pivotopd.records import Chain, Label, Turn
from pivotopd.seeds import rng_of, seed_of
from pivotopd.teacher.base import Query, Teacher, Transcript


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an iteration's recovery produced: trainable branch rows, and the fate of every chain."""

    turns: list[Turn]
    chains: list[Chain]


@dataclass(frozen=True, slots=True)
class Asks:
    """Questions to the teacher that a recovery waits for; it goes on with one action or None each."""

    queries: Sequence[Query]


@dataclass(frozen=True, slots=True)
class Writes:
    """Prompts that a recovery waits for; it goes on with one completion each.

    Attributes:
        requests: The prompts.
        chains: Episode and pivotal turn of each.
    """

    requests: Sequence[Request]
    chains: Sequence[tuple[str, int]]


Recovering = Steps[Asks | Writes, Any, Recovered]
"""A recovery that stops wherever it needs the teacher or the engine, and is sent what they answered."""


@dataclass(slots=True)
class _Chain:
    """A chain in progress: the context it stands in, and the environment once it has one."""

    transcript: Transcript
    pivot: int
    pairs: list[tuple[str, str]]
    prompt: Prompt
    snapshot: bytes | None
    state_hash: str
    env: Env | None = None
    rows: list[Turn] = field(default_factory=list)
    stopped: str | None = None
    detail: str | None = None
    gold: str = ""
    hinted: list[int] = field(default_factory=list)

    def stop(self, reason: str, detail: str | None = None) -> None:
        self.stopped, self.detail = reason, detail
        if self.env is not None:
            self.env.close()
            self.env = None


@dataclass
class Recoverer:
    """Writes recovery branches with one frozen policy.

    Args:
        environment: The environment.
        prompter: Builds prompts, with and without hint.
        generator: The frozen policy; with a hint in the prompt it is the self-teacher.
        teacher: Names the recovery actions.
        sampling: As in the rollout.
        max_turns: Turn limit of an episode.
        depth: K.
        limit: Most chains an iteration.
        how: Restore stored states, or replay.
        run_seed: Seed of the run.

    Attributes:
        teacher_queries: Recovery actions that the teacher was asked for so far.
    """

    environment: Environment
    prompter: Prompter
    generator: Generator
    teacher: Teacher
    sampling: Sampling
    max_turns: int
    depth: int
    limit: int
    how: Reach
    run_seed: int
    teacher_queries: int = 0

    def recover(
        self, transcripts: Mapping[str, Transcript], labels: Sequence[Label], iteration: int
    ) -> Recovered:
        """Return the branches of an iteration, asking this recoverer's teacher and generator.

        Arguments and errors are those of :meth:`steps`.
        """
        steps = self.steps(transcripts, labels, iteration)
        answer: Sequence[str | None] | Sequence[Completion] | None = None
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration as stop:
                recovered: Recovered = stop.value
                return recovered
            if isinstance(asked, Asks):
                answer = self.teacher.next_actions(asked.queries)
            else:
                answer = self.generator.generate(asked.requests, self.sampling)

    def steps(
        self, transcripts: Mapping[str, Transcript], labels: Sequence[Label], iteration: int
    ) -> Recovering:
        """Write the branches of an iteration, or of a part of it whose labels pass no limit together.

        Args:
            transcripts: Episodes by id.
            labels: All labels; the pivotal ones start chains.
            iteration: Training iteration, part of every seed.

        Raises:
            ArtifactError: A recorded prompt cannot be rebuilt: the rows come from other settings.
        """
        if not self.depth:
            return Recovered([], [])
        fates: list[Chain] = []
        pivots: list[Label] = []
        for label in sorted((one for one in labels if one.pivotal), key=lambda one: (one.episode, one.turn)):
            if label.turn + 1 < len(transcripts[label.episode].turns):
                pivots.append(label)
            else:
                fates.append(_fate(label, 0, "episode_over"))
        chosen = _choose(len(pivots), self.limit, self.run_seed, iteration)
        fates += [_fate(label, 0, "over_cap") for index, label in enumerate(pivots) if index not in chosen]
        chains = [
            self._begin(transcripts[label.episode], label.turn)
            for index, label in enumerate(pivots)
            if index in chosen
        ]
        for depth in range(1, self.depth + 1):
            going = [chain for chain in chains if chain.stopped is None]
            if going:
                yield from self._deepen(going, depth)
        for chain in chains:
            if chain.stopped is None:
                chain.stop("depth")
        fates += [
            Chain(
                run=chain.transcript.episode.run,
                iteration=iteration,
                episode=chain.transcript.episode.episode,
                pivot_turn=chain.pivot,
                accepted=len(chain.rows),
                stopped=chain.stopped or "depth",
                detail=chain.detail,
            )
            for chain in chains
        ]
        fates.sort(key=lambda fate: (fate.episode, fate.pivot_turn))
        return Recovered([row for chain in chains for row in chain.rows], fates)

    def _begin(self, transcript: Transcript, pivot: int) -> _Chain:
        """Stand in the recorded context after a pivotal turn."""
        turns = transcript.turns
        now = turns[pivot + 1]
        pairs = [(turn.observation, turn.action) for turn in turns[: pivot + 1]]
        prompt = self.prompter.rebuilt(turns, pivot + 1)
        return _Chain(transcript, pivot, pairs, prompt, now.snapshot, now.state_hash)

    def _deepen(self, chains: Sequence[_Chain], depth: int) -> Steps[Asks | Writes, Any, None]:
        """Give every chain its turn at one depth, in one batch of queries and one of requests."""
        self.teacher_queries += len(chains)
        queries = [
            Query(chain.transcript.task, chain.prompt.view, chain.snapshot, chain.state_hash)
            for chain in chains
        ]
        golds: Sequence[str | None] = yield Asks(queries)
        asking: list[_Chain] = []
        for chain, gold in zip(chains, golds, strict=True):
            hinted = self.prompter.hinted(chain.prompt, hint=gold) if gold else None
            if gold is None:
                chain.stop("unresolved")
            elif hinted is None:
                chain.stop("prompt_too_long")
            elif self.prompter.wording.privileged(self.prompter.wording.prompt(chain.prompt.view)):
                chain.stop("privileged_marker")
            else:
                chain.gold, chain.hinted = gold, hinted
                asking.append(chain)
        names = [(chain.transcript.episode.episode, chain.pivot) for chain in asking]
        requests = [Request(chain.hinted, self._seed(chain, depth)) for chain in asking]
        completions: Sequence[Completion] = (yield Writes(requests, names)) if requests else []
        advancing: list[tuple[_Chain, str, tuple[Answer | None, Answer]]] = []
        for chain, request, completion in zip(asking, requests, completions, strict=True):
            action = self._keep(chain, request, completion, depth)
            if action is not None and depth < self.depth:
                if chain.prompt.view.turn + 1 >= self.max_turns:
                    chain.stop("turn_limit")
                else:
                    advancing.append((chain, action, self._begin_advance(chain, action)))
        for chain, action, answers in advancing:
            try:
                self._advance(chain, action, *answers)
            except ReplayDivergence as divergence:
                chain.stop("replay_divergence", divergence.what)
            except EnvironmentFault as fault:
                chain.stop("environment_error", fault.what)

    def _seed(self, chain: _Chain, depth: int) -> int:
        return seed_of("recovery", self.run_seed, chain.transcript.episode.seed, chain.pivot, depth)

    def _keep(self, chain: _Chain, request: Request, completion: Completion, depth: int) -> str | None:
        """Store an acceptable response as a row without hint; return its action, or None."""
        text, escaped = self.prompter.codec.decode(completion.response_ids.tolist())
        reply = self.prompter.wording.parse(text)
        if completion.finish_reason == "length":
            chain.stop("truncated_response")
            return None
        if not (reply.committed and reply.action):
            chain.stop("no_action", text[-80:])
            return None
        if self.prompter.wording.leaks(text):
            chain.stop("leak", text[:200])
            return None
        episode = chain.transcript.episode
        chain.rows.append(
            Turn(
                run=episode.run,
                iteration=episode.iteration,
                episode=episode.episode,
                group=episode.group,
                turn=chain.pivot + depth,
                source="recovery",
                seed=request.seed,
                prompt_ids=chain.prompt.ids,
                shown_pairs=len(chain.prompt.view.history),
                response_ids=completion.response_ids.tolist(),
                behaviour_logprobs_nats=completion.logprobs_nats.tolist(),
                temperature=self.sampling.temperature,
                finish_reason=completion.finish_reason,
                instruction=chain.prompt.view.instruction,
                observation=chain.prompt.view.observation,
                admissible=chain.prompt.view.admissible,
                response_text=text,
                text_escaped=escaped,
                action=reply.action,
                committed=reply.committed,
                valid=reply.valid,
                reward=0.0,
                state_hash=chain.state_hash,
                snapshot=chain.snapshot,
                next_observation=None,
                pivot_turn=chain.pivot,
                depth=depth,
                gold_action=chain.gold,
                hinted_prompt_ids=chain.hinted,
            )
        )
        return reply.action

    def _begin_advance(self, chain: _Chain, action: str) -> tuple[Answer | None, Answer]:
        """Begin to bring a chain's environment to where the chain stands, and to execute a kept action."""
        reaching = None
        if chain.env is None:
            chain.env = self.environment.open()
            transcript, turn = chain.transcript, chain.prompt.view.turn
            reaching = begin_reach(
                chain.env, transcript.task, transcript.episode.seed, transcript.turns, turn, self.how
            )
        return reaching, begin_step(chain.env, action)

    def _advance(self, chain: _Chain, action: str, reaching: Answer | None, stepping: Answer) -> None:
        """Stand in the context after a kept action, or stop where the episode ends."""
        turn = chain.prompt.view.turn
        assert chain.env is not None  # noqa: S101 - it was opened when this began
        if reaching is not None:
            reaching()
        result = stepping()
        chain.rows[-1] = replace(chain.rows[-1], reward=result.reward, next_observation=result.observation)
        if result.done:
            chain.stop("episode_over")
            return
        chain.pairs.append((chain.prompt.view.observation, action))
        prompt = self.prompter.plain(
            chain.prompt.view.instruction, chain.pairs, turn + 1, result.observation, result.admissible
        )
        if prompt is None:
            chain.stop("prompt_too_long")
            return
        chain.prompt = prompt
        chain.snapshot, chain.state_hash = chain.env.dump(), chain.env.state_hash()


def _choose(count: int, limit: int, run_seed: int, iteration: int) -> frozenset[int]:
    """Choose which chains survive the cap, uniformly (the paper does not say which)."""
    if count <= limit:
        return frozenset(range(count))
    drawn = rng_of("recovery cap", run_seed, iteration).choice(count, size=limit, replace=False)
    return frozenset(int(index) for index in drawn)


def _fate(label: Label, accepted: int, stopped: str) -> Chain:
    return Chain(label.run, label.iteration, label.episode, label.turn, accepted, stopped, None)
