"""Rollout, label and recover of an iteration at once: a finished group goes on while others still play.

Each stage still publishes its own artifact, in order and with what it alone used: the same rows and counts as
when the stages run one after another. ``exact`` gives the engine the same batches too, hence the same bits.
While the teacher is waited for, scores of the update are computed (:mod:`stages.ahead`).
What is not published when the process ends is done again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.errors import PivotError
from pivotopd.ledger import Counts
from pivotopd.models.base import PolicyEngine, Scorer
from pivotopd.models.checkpoint import Policy
from pivotopd.records import Episode, Label, Lesson, Turn
from pivotopd.recovery import Recovered, Recoverer
from pivotopd.rollout import Played
from pivotopd.teacher.base import Query, Reading, Teacher, Transcript
from pivotopd.teacher.courier import Courier
from pivotopd.teacher.pivots import lesson_of
from pivotopd.teacher_section import EndpointSection, OracleSection
from stages import label, recover, rollout
from stages.ahead import Ahead
from stages.joint import Joint, Recoveries
from stages.teaching import teacher_of
from stages.work import Job, Kept, Source, Stopwatch, Work


class Share(Work):
    """One stage's share of a process: the same models, and counts of its own."""

    def __init__(self, whole: Work) -> None:
        super().__init__(whole.config, whole.layout, whole.progress)
        self._whole = whole

    def policy(self, source: Source) -> Policy:
        """Return the whole's policy."""
        return self._whole.policy(source)

    def scorer(self, source: Source) -> Scorer:
        """Return the whole's."""
        return self._whole.scorer(source)

    def engine(self, source: Source) -> PolicyEngine:
        """Return the whole's."""
        return self._whole.engine(source)

    def keep(self, name: str, load: Callable[[], Kept], *, attached: bool = False) -> Kept:
        """Let the whole keep it."""
        return self._whole.keep(name, load, attached=attached)

    @property
    def parity_metrics(self) -> dict[str, float]:
        """What the whole's probe found."""
        return self._whole.parity_metrics

    @cached_property
    def environment(self) -> MeteredEnvironment:
        """The same environment with a meter of its own."""
        return MeteredEnvironment(self._whole.environment.inner)

    @property
    def spent(self) -> Counts:
        """What this share used, its part of the engine's work as it was told."""
        return self._counted + self.environment.counts


def can_stream(config: RunConfig) -> bool:
    """Tell whether an iteration's stages may run at once.

    A teacher that is a model of ours, in this process or served, works after the rollout: its batches decide
    the last bits of what it draws from.
    """
    return config.streaming != "none" and isinstance(config.teacher, OracleSection | EndpointSection)


def waits_for(config: RunConfig) -> bool:
    """Tell whether a thread waits for the teacher; one that computes here gains nothing by it."""
    return isinstance(config.teacher, EndpointSection)


class Stream:
    """An iteration under way; its stages are asked for in order.

    Args:
        work: The process's share of the run.
        jobs: Jobs by stage: rollout, label and update, and recover where the method has it.

    Attributes:
        jobs: Those that are done here: all but the update.
    """

    def __init__(self, work: Work, jobs: Mapping[str, Job]) -> None:
        self.jobs = {stage: job for stage, job in jobs.items() if stage != "update"}
        self._work = work
        self._ahead = Ahead(work, jobs["update"])
        self._shares = {stage: Share(work) for stage in self.jobs}
        self._failed: PivotError | None = None
        self._transcripts: dict[str, Transcript] = {}
        self._reading: list[tuple[list[Transcript], Future[Sequence[Reading]]]] = []
        self._labels: dict[str, list[Label]] = {}
        self._lessons: dict[str, Lesson] = {}
        self._held: list[str] = []
        self._couriers: list[Courier[Transcript, Reading] | Courier[Query, str | None]] = []
        self._recoveries: Recoveries | None = None
        self._recoverer: Recoverer | None = None

    def close(self) -> None:
        """Stop asking the teacher."""
        for courier in self._couriers:
            courier.close()

    def rollout(self) -> Artifact:
        """Play all groups, let finished ones go on, and publish the episodes."""
        watch, share, before = Stopwatch(), self._shares["rollout"], self._work.spent
        job = self.jobs["rollout"]
        with watch.phase("load"):
            engine = self._work.engine(job.inputs["policy"])
        playing = rollout.prepare(share, job, watch)
        self._expected = len(playing.begun.jobs)
        joint = Joint(engine, self._work.config.rollout.batch_episodes)
        playing.player.generator = joint
        self._prepare(joint)
        left = Counter(one.group for one in playing.begun.jobs)
        tasks = {one.episode: one.task for one in playing.begun.jobs}
        groups: dict[str, list[Transcript]] = {}
        played: list[Played] = []
        share.progress("episodes", 0, len(tasks))
        with watch.phase("play"):
            for one in playing.player.play(playing.begun.jobs):
                played.append(one)
                share.progress("episodes", len(played), len(tasks))
                episode = one.episode
                groups.setdefault(episode.group, []).append(
                    Transcript(tasks[episode.episode], episode, one.turns)
                )
                left[episode.group] -= 1
                if not left[episode.group]:
                    self._finished(groups.pop(episode.group))
                self._go_on()
        used = self._work.spent - before
        aside = Counts() if self._recoveries is None else self._recoveries.used
        return rollout.publish(share, job, playing, played, lambda: share.spent + used - aside, watch)

    def label(self) -> Artifact:
        """Wait for the rest of the readings, and publish labels and lessons."""
        watch, share = Stopwatch(), self._shares["label"]
        with watch.phase("teach"):
            self._refuse()
            self._ahead.played(*self._played)
            self._readings.hurry()
            while self._reading:
                self._ahead.wait([self._reading[0][1]], watch)
                self._take_readings()
                self._start_recoveries()
        order = sorted(self._transcripts)
        labels = [one for episode in order for one in self._labels[episode]]
        lessons = [self._lessons[episode] for episode in order]
        spent = share.spent
        return label.publish(share, self.jobs["label"], labels, lessons, self._reader, lambda: spent, watch)

    def recover(self) -> Artifact:
        """Do the rest of the recoveries, and publish them."""
        watch, share, before = Stopwatch(), self._shares["recover"], self._work.spent
        assert self._recoveries is not None and self._recoverer is not None  # noqa: S101, PT018 - a job exists
        joined = self._recoveries.used
        with watch.phase("recover"):
            engine = self._work.engine(self.jobs["recover"].inputs["policy"])
            self._ahead.labelled(*self._played)
            parts = self._recoveries.finish(
                engine, self._work.sampling, lambda asked: self._ahead.wait(asked, watch)
            )
        turns = [turn for part in parts for turn in part.turns]
        turns.sort(key=lambda turn: (turn.episode, turn.pivot_turn, turn.depth))
        chains = [chain for part in parts for chain in part.chains]
        chains.sort(key=lambda chain: (chain.episode, chain.pivot_turn))
        spent = share.spent + joined + (self._work.spent - before)
        recovered = Recovered(turns, chains)
        return recover.publish(share, self.jobs["recover"], recovered, self._recoverer, lambda: spent, watch)

    @property
    def _played(self) -> tuple[list[Episode], list[Turn]]:
        """All episodes and their turns, in the order of the rollout's artifact."""
        listed = [self._transcripts[episode] for episode in sorted(self._transcripts)]
        return [one.episode for one in listed], [turn for one in listed for turn in one.turns]

    def _prepare(self, joint: Joint) -> None:
        """Open what labels and recoveries are made with."""
        waits = waits_for(self._work.config)
        share = self._shares["label"]
        self._reader: Teacher = teacher_of(share, self.jobs["label"])
        self._readings: Courier[Transcript, Reading] = Courier(
            lambda asked: label.readings(share, self._reader, asked), waits=waits
        )
        self._couriers.append(self._readings)
        if "recover" not in self.jobs:
            return
        share, job = self._shares["recover"], self.jobs["recover"]
        teacher = teacher_of(share, job)
        actions: Courier[Query, str | None] = Courier(teacher.next_actions, waits=waits)
        self._couriers.append(actions)
        self._recoverer = recover.recoverer_of(share, job, joint.engine, teacher)
        self._recoveries = Recoveries(actions)
        if self._work.config.streaming == "joined":
            joint.recoveries = self._recoveries

    def _finished(self, group: list[Transcript]) -> None:
        """Send a finished group to the teacher."""
        group.sort(key=lambda one: one.episode.episode)
        self._transcripts |= {one.episode.episode: one for one in group}
        self._reading.append((group, self._readings.ask(group)))

    def _go_on(self) -> None:
        """Take what the teacher has said so far; its errors are the label stage's own."""
        if self._failed is None:
            try:
                self._take_readings()
                self._start_recoveries()
            except PivotError as error:
                self._failed = error

    def _refuse(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _take_readings(self) -> None:
        share = self._shares["label"]
        for entry in [one for one in self._reading if one[1].done()]:
            group, answer = entry
            self._reading.remove(entry)
            for transcript, reading in zip(group, answer.result(), strict=True):
                episode = transcript.episode.episode
                self._labels[episode] = label.labels_from(share, self._reader, transcript, reading)
                self._lessons[episode] = lesson_of(reading, transcript.episode, self._reader.name)
                self._held.append(episode)
                share.progress("episodes labelled", len(self._labels), self._expected)

    def _start_recoveries(self) -> None:
        """Start what is labelled, once no episode to come can make the limit choose among the chains."""
        if self._recoveries is None or self._recoverer is None or not self._held or not self._certain:
            return
        self._held.sort()
        transcripts = {episode: self._transcripts[episode] for episode in self._held}
        labels = [one for episode in self._held for one in self._labels[episode]]
        config, iteration = self._work.config, self.jobs["recover"].iteration or 0
        if config.method.random_pivots:
            from pivotopd.ablations import at_random_turns

            turns = {key: len(one.turns) for key, one in transcripts.items()}
            labels = at_random_turns(labels, turns, config.seed, iteration)
        self._held = []
        if sum(one.pivotal for one in labels) > config.recovery.limit:  # only once all are read: it chooses
            self._recoveries.start(self._recoverer.steps(transcripts, labels, iteration))
            return
        for episode in transcripts:  # one by one, so that each fits where a batch has little room
            own = [one for one in labels if one.episode == episode]
            self._recoveries.start(self._recoverer.steps(transcripts, own, iteration))

    @property
    def _certain(self) -> bool:
        """Whether it is sure which chains there will be, with the most that can come of what is unread."""
        config = self._work.config
        unread = self._expected - len(self._labels)
        if not unread:
            return True
        pivots = sum(one.pivotal for found in self._labels.values() for one in found)
        most = pivots + unread * config.teacher.max_candidates
        return not config.method.random_pivots and most <= config.recovery.limit
