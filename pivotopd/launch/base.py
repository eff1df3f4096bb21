"""What all launchers share: the resources of a job, the job as it is asked for, and what can become of it.

A launcher takes a :class:`Task` and says with a :class:`State` how it is. It keeps nothing in memory: who
started a task may die, and another process asks the same platform by the same id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Protocol

from pydantic import AfterValidator

from pivotopd.section import Count, Positive, Section, WholeNumber

SCRIPT: Final = "job.sh"
"""What was handed to the platform, in a job's folder."""
SHOWN_TOKEN: Final = "rendered"  # noqa: S105 - no secret
"""Token of what is only shown."""
LOG: Final = "log.txt"
"""Output of a job, of all its starts, in its folder."""

StageName = Literal["warm_start", "skills", "rollout", "label", "recover", "update", "evaluate"]
"""Stages that may have resources of their own."""

_WORD = re.compile(r"[A-Za-z0-9][\w.,:@&|*()\[\]/+-]*", re.ASCII)


def _one_word(value: str) -> str:
    """Refuse what a scheduler would take for more than one value."""
    if not _WORD.fullmatch(value, endpos=200) or len(value) > 200:
        raise ValueError(
            "letters, digits and . , : @ & | * ( ) [ ] / + - only, beginning with one of the first"
        )
    return value


def _one_line(value: str) -> str:
    """Refuse an empty text, control characters, and what a program would take for an option."""
    if not value.strip() or not value.isprintable() or value.startswith("-"):
        raise ValueError("one line of printable characters, not beginning with a dash")
    return value


Word = Annotated[str, AfterValidator(_one_word)]
"""A name that a scheduler knows, such as a partition's."""
Line = Annotated[str, AfterValidator(_one_line)]
"""A path or an address."""


class Resources(Section):
    """What a job asks for. In ``launch.stages.STAGE``, null takes what ``launch.resources`` says."""

    nodes: Count | None = None
    """Nodes; null is 1."""
    ranks: Count | None = None
    """Processes a node; null is 1. With more than one in all, they join one process group."""
    gpus: WholeNumber | None = None
    """GPUs a node; null is 0."""
    gpu_type: Word | None = None
    """Type of the GPUs, as the platform calls it; null takes any."""
    cpus: Count | None = None
    """CPU cores a process; null is 1."""
    memory_gb: Positive | None = None
    """Memory a node; null is 16. Always asked for: what is not said may mean the whole node."""
    time_limit_min: Count | None = None
    """Longest time of a job; null is 1440, one day. A job that nears it stops at a safe point and goes on."""
    partition: Word | None = None
    """Partition or queue; null takes the platform's default."""
    account: Word | None = None
    """Who is billed."""
    constraint: Word | None = None
    """Features that a node must have, as the platform writes them."""
    image: Line | None = None
    """Container image; null runs the Python that submits."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Resources with every default filled in; the fields are those of :class:`Resources`."""

    nodes: int = 1
    ranks: int = 1
    gpus: int = 0
    gpu_type: str | None = None
    cpus: int = 1
    memory_gb: float = 16.0
    time_limit_min: int = 1440
    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    image: str | None = None

    @property
    def processes(self) -> int:
        """Processes on all nodes."""
        return self.nodes * self.ranks


def needed(*sections: Resources) -> Needed:
    """Return the resources that sections ask for; what an earlier one leaves open, a later one fills."""
    given: dict[str, object] = {}
    for section in reversed(sections):
        given |= {name: value for name, value in section.model_dump().items() if value is not None}
    return Needed(**given)  # type: ignore[arg-type]  # the fields are those of the section


@dataclass(frozen=True, slots=True)
class Task:
    """One job as it is asked for.

    Attributes:
        name: Name for people, such as ``recover-0003``.
        work: Digest of the work; what is asked for again with an equal one is the same job.
        arguments: What follows Python, such as ``-m stages.rollout --run runs/name``; which Python it is,
            the launcher knows.
        resources: What it needs.
        after: Ids of the platform's jobs that must have succeeded before.
        files: Texts of small files that arguments name, by that argument. They lie where this machine sees
            them; a launcher whose jobs do not see them hands them over.
    """

    name: str
    work: str
    arguments: tuple[str, ...]
    resources: Needed
    after: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


Phase = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]
"""``lost``: the platform knows nothing of the job any more, and it left no exit code."""


@dataclass(frozen=True, slots=True)
class State:
    """How a job is.

    Attributes:
        phase: Where it stands.
        exit_code: Of the command, once it has ended by itself.
        reason: The platform's word for why it waits or how it ended.
    """

    phase: Phase
    exit_code: int | None = None
    reason: str = ""

    @property
    def live(self) -> bool:
        """It may still do something."""
        return self.phase in ("waiting", "running")


class Launcher(Protocol):
    """A platform."""

    @property
    def kind(self) -> str:
        """Name of the platform, as in ``--to``."""
        ...

    @property
    def chains(self) -> bool:
        """The platform itself starts a job after others, as :attr:`Task.after` asks."""
        ...

    def render(self, task: Task, folder: str, token: str) -> str:
        """Return what is handed to the platform, as text.

        Args:
            task: The job.
            folder: Folder for its log and exit code, which this machine and the job both see.
            token: Of the submission, where the text names it.
        """
        ...

    def submit(self, task: Task, folder: str, token: str) -> str:
        """Hand a rendered job to the platform and return its id.

        Args:
            task: The job.
            folder: Its folder, with the rendered text in it.
            token: A name that no other submission has.

        Raises:
            ConfigError: The platform refuses the job.
            ClusterError: It cannot be reached.
        """
        ...

    def find(self, folder: str, token: str) -> str | None:
        """Return the id of a job whose submission nobody saw the end of, or None if there was none."""
        ...

    def state(self, folder: str, job: str) -> State:
        """Say how a job is.

        Raises:
            ClusterError: The platform cannot be reached now; ask again.
        """
        ...

    def cancel(self, job: str) -> None:
        """Stop a job, whatever it does; one that has ended is no error."""
        ...
