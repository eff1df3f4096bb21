"""The learner of a run: started once, and kept as long as it holds the very policy that is to be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pivotopd.learner_ranks import LearnerGroup, Start, Training
from pivotopd.ledger import Counts
from stages.launched_ranks import LaunchedLearner, launched_ranks, learner_of
from stages.work import Source, Work

_NAME = "learner"


@dataclass
class _Held:
    """A learner and the digest of the checkpoint that its weights and its optimizer's state are at."""

    training: Training
    at: str

    def close(self) -> None:
        """Give memory and processes back."""
        self.training.close()


@contextmanager
def learner_at(work: Work, source: Source, initial: Source, then: str) -> Iterator[Training]:
    """Lend the run's learner, at a policy; start one where none is held, or one at another policy.

    Args:
        work: The process's share of the run; it closes the learner in the end.
        source: The policy to train.
        initial: The initial policy, whose weights are frozen below adapters.
        then: Digest of the checkpoint that the learner is at afterwards. After an error it is closed.

    Raises:
        ConfigError: There are fewer GPUs than ranks, or another number than was started.
        ArtifactError: The policy or its state cannot be loaded.
        ClusterError: A rank ended.
    """
    held = work.held(_NAME)
    work.release(_NAME)
    if not isinstance(held, _Held) or held.at != source.digest:
        if held is not None:
            held.close()
        held = _Held(_started(work, source, initial), source.digest)
        work.count(Counts(learner_starts=1))
    try:
        yield held.training
    except BaseException:
        held.close()
        raise
    held.at = then
    work.hold(_NAME, held)


def _started(work: Work, source: Source, initial: Source) -> Training:
    config = work.config.update
    state = source if source.prefix == work.layout.checkpoints else None
    base = source if config.lora is None else initial
    if launched_ranks() > 1:
        return LaunchedLearner(work, base, state)
    if config.ranks > 1:
        folder = None if state is None else work.policy_folder(state)
        group = LearnerGroup(Start(work.policy_folder(base), config, folder, work.config.threads))
        work.count(Counts(model_loads=config.ranks))
        return group
    return learner_of(work, base, state)
