"""Every failure a user can meet: what happened, where, how to mend it, and its exit code.

An error that reaches a command's end is printed as these three parts and nothing else; the process ends
with the class's ``exit_code``. Anything that is not a :class:`PivotError` is a bug and keeps its traceback.
"""

from __future__ import annotations

from typing import ClassVar


class PivotError(Exception):
    """Base of all errors meant for a user.

    Args:
        what: One sentence: what is wrong.
        where: The file, key, row or address it was found at.
        mend: What the user can do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None) -> None:
        self.what, self.where, self.mend = what, where, mend
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"  where: {self.where}")
        if self.mend:
            parts.append(f"  mend:  {self.mend}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.mend))


def _rebuild(cls: type[PivotError], what: str, where: str | None, mend: str | None) -> PivotError:
    """Unpickle an error: keyword-only arguments do not survive the default protocol."""
    return cls(what, where=where, mend=mend)


def first_line(error: BaseException, most: int = 300) -> str:
    """Return the first line of what another library's error says, cut; its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:most]


class ConfigError(PivotError):
    """A configuration, override, command-line argument or environment variable is not acceptable."""

    exit_code = 2


class ArtifactError(PivotError):
    """An input artifact or checkpoint is missing, damaged, or of another schema."""

    exit_code = 3


class EnvironmentFault(PivotError):
    """An environment cannot be built, played or replayed: games, engine, data."""

    exit_code = 4


class GameError(EnvironmentFault):
    """A game file or its problem cannot be used."""


class ReplayDivergence(EnvironmentFault):
    """A replayed prefix did not reproduce the recorded observations. The recovery is dropped and counted."""


class SearchLimit(EnvironmentFault):
    """The oracle's search passed its node limit. It never means that the state is unsolvable."""


class TeacherError(PivotError):
    """The teacher cannot be reached, or refuses every request."""

    exit_code = 5


class NothingToTrainOn(PivotError):
    """No row of the iteration carries a training signal, and no episode was won."""

    exit_code = 6


class NumericsError(PivotError):
    """Weights, losses or gradients are not finite, or engine and learner differ in log-probabilities."""

    exit_code = 7


class RunsFailed(PivotError):
    """Runs of a comparison failed, or their figures are missing; the others are reported."""

    exit_code = 8


class ClusterError(PivotError):
    """A cluster ended or lost a job, or cannot be reached; or processes of an update or environment ended."""

    exit_code = 9


class EngineFault(PivotError):
    """An engine that generates has ended, cannot be reached, or holds another policy than it should."""

    exit_code = 10


class StorageError(PivotError):
    """The store cannot be written or reached: disk full, permission, connection."""

    exit_code = 74


class Preempted(PivotError):
    """A job was asked to stop and left a resumable state; in this process, ``stops.StopSignal`` says so."""

    exit_code = 75
