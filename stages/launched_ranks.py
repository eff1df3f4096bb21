"""The update on ranks that a launcher has started, by torchrun or srun, on one machine or several.

Rank 0 runs the stage. The others follow it: they hear what it asks of its learner, and do the same on theirs.
All of them must see the run's storage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pivotopd import distributed
from pivotopd.errors import ClusterError, ConfigError, first_line
from pivotopd.learner import Learner
from pivotopd.methods.base import AuxiliaryLoss
from pivotopd.training_rows import StepReport, TrainingRow
from stages.work import Source, Work

_PATIENCE = timedelta(days=7)
"""How long a rank waits to be asked: rank 0 scores all rows before it trains."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """What every rank is to do with its learner; without a name there is nothing left to do."""

    what: str | None
    arguments: tuple[Any, ...] = ()


def launched_ranks() -> int:
    """Return how many processes a launcher started for this stage; 1 without one.

    Raises:
        ConfigError: Its variable is no number.
    """
    return _number("WORLD_SIZE", 1)


def follows() -> bool:
    """Tell whether this process only follows another."""
    return launched_ranks() > 1 and _number("RANK", 0) > 0


def _number(variable: str, otherwise: int) -> int:
    given = os.environ.get(variable, str(otherwise))
    if not given.isdecimal():
        raise ConfigError(
            f"{given!r} is no number",
            where=f"environment variable {variable}",
            mend="a launcher such as torchrun sets it; unset it for one process",
        )
    return int(given)


def learner_of(work: Work, base: Source, state: Source | None) -> Learner:
    """Return a learner of this process.

    Args:
        work: The process's share of the run.
        base: Where its weights come from.
        state: The checkpoint whose weights and optimizer state it takes up.
    """
    learner = Learner(work.fresh_policy(base), work.config.update)
    if state is not None:
        learner.load(work.policy_folder(state))
    return learner


class LaunchedLearner:
    """Rank 0's learner; whatever it is asked, all ranks do. See :class:`pivotopd.learner_ranks.Training`.

    Args:
        work: The process's share of the run.
        base: Where the weights come from.
        state: The checkpoint whose state is taken up.

    Raises:
        ConfigError: ``update.ranks`` asks for another number of ranks than were started.
        ClusterError: A rank ended.
    """

    def __init__(self, work: Work, base: Source, state: Source | None) -> None:
        ranks, wanted = launched_ranks(), work.config.update.ranks
        if wanted not in (1, ranks):
            raise ConfigError(
                f"{ranks} ranks were started, and {wanted} are asked for",
                where="update.ranks",
                mend=f"start {wanted}, or leave update.ranks out: the launcher decides",
            )
        with _lost_ranks():
            _tell(_Ask("start", (base, state)))
            self._learner = learner_of(work, base, state)

    def train(
        self, rows: Sequence[TrainingRow], seed: int, auxiliary: AuxiliaryLoss | None
    ) -> list[StepReport]:
        """Take one update."""
        reports: list[StepReport] = self._all("train", list(rows), seed, auxiliary)
        return reports

    def check_finite(self, where: str, mend: str) -> None:
        """Refuse weights that are not finite."""
        self._all("check_finite", where, mend)

    def weights_digest(self) -> str:
        """Return the digest of the weights."""
        digest: str = self._all("weights_digest")
        return digest

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state; this rank alone writes."""
        self._all("save", folder)

    def close(self) -> None:
        """Give this rank's memory back; the others leave when the stage does."""
        self._learner.close()

    def _all(self, what: str, *arguments: Any) -> Any:
        with _lost_ranks():
            _tell(_Ask(what, arguments))
            return getattr(self._learner, what)(*arguments)


def follow(work: Work) -> None:
    """Do what rank 0 asks until it has nothing left to do, or is gone.

    Raises:
        PivotError: This rank's own error.
    """
    learner: Learner | None = None
    while True:
        try:
            ask = _hear()
            if ask.what is None:
                dist.barrier(group=_channel())
                return
            if ask.what == "start":
                learner = learner_of(work, *ask.arguments)
            else:
                getattr(learner, ask.what)(*ask.arguments)
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            sys.stderr.write(f"rank {dist.get_rank()}: rank 0 or another is gone\n")
            return


@contextmanager
def leading() -> Iterator[None]:
    """Let the followers leave when the stage has done its work; after an error they find us gone."""
    if launched_ranks() == 1:
        yield
        return
    _channel()
    yield
    _tell(_Ask(None))
    dist.barrier(group=_channel())


@cache
def _channel() -> Any:
    """Return a group of all ranks on which words travel, also where weights travel over NCCL."""
    distributed.join()
    return dist.new_group(backend="gloo", timeout=_PATIENCE)


def _tell(ask: _Ask) -> None:
    dist.broadcast_object_list([ask], src=0, group=_channel())


def _hear() -> _Ask:
    heard: list[Any] = [None]
    dist.broadcast_object_list(heard, src=0, group=_channel())
    ask: _Ask = heard[0]
    return ask


def _is_lost(error: RuntimeError) -> bool:
    """Tell a torn connection to another rank from every other error."""
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        word in text for word in ("Connection closed", "Connection reset", "Broken pipe", "gloo", "NCCL")
    )


@contextmanager
def _lost_ranks() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise ClusterError(
            f"a rank of {launched_ranks()} ended: {first_line(error)}",
            where="update",
            mend="look at that rank's own error; the same command resumes from the last complete stage",
        ) from error
