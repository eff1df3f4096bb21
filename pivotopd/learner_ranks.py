"""A learner on several ranks of this machine: one process each, started once, told what to do over pipes.

The processes find each other through a file, so no port of ours can be taken. Any error of a rank, and its
death, ends all of them: what they held is lost, what was published before stays.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pivotopd.config import UpdateSection
from pivotopd.errors import ClusterError, ConfigError, PivotError
from pivotopd.methods.base import AuxiliaryLoss
from pivotopd.training_rows import StepReport, TrainingRow

_STOP_S = 5.0
"""Seconds that a rank has to leave before it is killed."""


class Training(Protocol):
    """What an update asks of a learner, on one rank or several."""

    def train(
        self, rows: Sequence[TrainingRow], seed: int, auxiliary: AuxiliaryLoss | None
    ) -> list[StepReport]:
        """Take one update."""

    def check_finite(self, where: str, mend: str) -> None:
        """Refuse weights that are not finite."""

    def weights_digest(self) -> str:
        """Return the digest of the weights."""

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state."""

    def close(self) -> None:
        """Give memory and processes back."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a rank starts.

    Attributes:
        policy: Local folder of the policy that the weights come from; with LoRA the initial one.
        config: The update's section.
        state: Local folder of the checkpoint whose state is taken up; None begins anew.
        threads: CPU threads of each rank.
    """

    policy: Path
    config: UpdateSection
    state: Path | None
    threads: int


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a rank ends with: an error meant for a user, or the text of any other."""

    error: PivotError | None
    text: str


class LearnerGroup:
    """A learner of several ranks, as processes of this machine.

    Args:
        start: What every rank starts with.

    Raises:
        ConfigError: There are fewer GPUs than ranks, or DeepSpeed does not start.
        ArtifactError: The policy or its state cannot be loaded.
        ClusterError: A rank ended.
    """

    def __init__(self, start: Start) -> None:
        _check_devices(start.config.ranks)
        self._folder = tempfile.TemporaryDirectory(prefix="pivotopd-ranks-")
        meeting = Path(self._folder.name) / "meeting"
        context = multiprocessing.get_context("spawn")  # a fork would take CUDA and threads along
        self._pipes: list[Connection] = []
        self._ranks: list[SpawnProcess] = []
        for rank in range(start.config.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, start, meeting, theirs), name=f"learner rank {rank}", daemon=True
            )
            process.start()
            theirs.close()  # so that the pipe ends with the rank
            self._pipes.append(ours)
            self._ranks.append(process)
        self._replies("start")

    @property
    def process_ids(self) -> list[int]:
        """Ids of the ranks' processes."""
        return [process.pid for process in self._ranks if process.pid is not None]

    def train(
        self, rows: Sequence[TrainingRow], seed: int, auxiliary: AuxiliaryLoss | None
    ) -> list[StepReport]:
        """Take one update; arguments and errors are those of :meth:`pivotopd.learner.Learner.train`."""
        reports: list[StepReport] = self._ask("train", list(rows), seed, auxiliary)
        return reports

    def check_finite(self, where: str, mend: str) -> None:
        """Refuse weights that are not finite.

        Raises:
            NumericsError: Names the first such tensor.
        """
        self._ask("check_finite", where, mend)

    def weights_digest(self) -> str:
        """Return the digest of the weights."""
        digest: str = self._ask("weights_digest")
        return digest

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state into a folder, which is whole when this returns."""
        self._ask("save", folder)

    def close(self) -> None:
        """Stop the ranks: those that are idle leave by themselves, the others are killed."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._ranks:
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._ranks = [], []
        self._folder.cleanup()

    def _kill(self) -> None:
        for process in self._ranks:
            process.kill()
        self.close()

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Let every rank do something; return what rank 0 returns."""
        if not self._ranks:
            raise ClusterError("the learner's ranks are stopped", mend="start the command again")
        message = pickle.dumps((what, arguments))
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(message)
            except OSError:  # the rank has ended
                self._fail(rank, None, what)
        return self._replies(what)[0]

    def _replies(self, what: str) -> list[Any]:
        """Wait for one reply of each rank; end all of them at the first failure."""
        replies: dict[int, Any] = {}
        try:
            while len(replies) < len(self._ranks):
                waiting = {self._pipes[rank]: rank for rank in range(len(self._ranks)) if rank not in replies}
                for ready in wait(list(waiting)):
                    rank = waiting[ready]  # type: ignore[index]  # only our pipes are waited for
                    try:
                        replies[rank] = self._pipes[rank].recv()
                    except (EOFError, OSError):
                        self._fail(rank, None, what)
                    if isinstance(replies[rank], _Failure):
                        self._fail(rank, replies[rank], what)
        except BaseException:
            self._kill()
            raise
        return [replies[rank] for rank in sorted(replies)]

    def _fail(self, rank: int, failure: _Failure | None, what: str) -> NoReturn:
        """Raise the error of a rank, all ranks stopped."""
        count = len(self._ranks)
        self._ranks[rank].join(_STOP_S)
        code = self._ranks[rank].exitcode
        self._kill()
        if failure is not None and failure.error is not None:
            raise failure.error
        if failure is not None:
            raise RuntimeError(f"rank {rank} of {count} of the learner failed:\n{failure.text}")
        killed = code is not None and code < 0
        how = f"by {signal.Signals(-(code or 0)).name}" if killed else f"with exit code {code}"
        raise ClusterError(
            f"rank {rank} of {count} of the learner ended {how}; the others were stopped",
            where=f"update, {what}",
            mend="run the same command again: it resumes from the last complete stage. Where memory was "
            "short, lower update.micro_batch_tokens or set update.gradient_checkpointing=true",
        )


def _check_devices(ranks: int) -> None:
    import torch  # noqa: PLC0415 - heavy

    from pivotopd.models.devices import compute_device  # noqa: PLC0415 - imports torch

    if compute_device().type == "cuda" and torch.cuda.device_count() < ranks:
        raise ConfigError(
            f"{ranks} ranks need {ranks} GPUs, this machine shows {torch.cuda.device_count()}",
            where="update.ranks",
            mend="lower update.ranks, or look at CUDA_VISIBLE_DEVICES",
        )


def _serve(rank: int, start: Start, meeting: Path, pipe: Connection) -> None:
    """Be one rank until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        learner = _start(rank, start, meeting)
        pipe.send(None)
        while True:
            what, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own parent's message
            pipe.send(getattr(learner, what)(*arguments))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is done or dead; a peer may be too, so nobody is waited for
    except PivotError as error:
        pipe.send(_Failure(error, ""))
    except Exception:  # whatever it is, the parent raises it
        pipe.send(_Failure(None, traceback.format_exc()))
    os._exit(1)


def _start(rank: int, start: Start, meeting: Path) -> Training:
    import torch  # noqa: PLC0415 - heavy

    from pivotopd import distributed  # noqa: PLC0415 - heavy
    from pivotopd.learner import Learner  # noqa: PLC0415 - heavy
    from pivotopd.models.checkpoint import load_policy  # noqa: PLC0415 - heavy
    from pivotopd.models.devices import put_on_device  # noqa: PLC0415 - heavy

    torch.set_num_threads(start.threads)
    distributed.meet(meeting, rank, start.config.ranks)
    policy = load_policy(start.policy, start.config.dtype)
    put_on_device(policy.model)
    learner = Learner(policy, start.config)
    if start.state is not None:
        learner.load(start.state)
    return learner
