"""The protocol between an environment and the rest: tasks, steps, snapshots, wording.

An environment is one folder. Its face is an :class:`Environment`: it lists tasks, opens instances that play
them (:class:`Env`), and owns its wording (:class:`Wording`): the student's prompt, the reply rules, the
normal form of an action. Nothing outside the folder knows how its text looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Determinism = Literal["exact", "normalised", "none"]
Fork = Literal["value", "handle", "replay", "none"]


@dataclass(frozen=True)
class Task:
    """One task as a value. Splits and panels go by ``id`` and ``content_hash``, never by position."""

    id: str
    environment: str
    split: str
    family: str
    content_hash: str
    payload: Any = field(repr=False, hash=False, compare=False)


@dataclass(frozen=True)
class EnvSpec:
    """What a trace must name to be replayed: engine, version, data, and what the engine promises."""

    name: str
    version: str
    determinism: Determinism
    fork: Fork


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an environment answers to a reset or an action.

    Attributes:
        observation: Text for the agent.
        admissible: Actions the engine accepts now, sorted; None where the action space is open.
        reward: Training reward of this step.
        score: The environment's own dense number.
        won: The environment's verdict on the task. Success is this and nothing else.
        done: The episode is over by the environment's own rules (never by a turn limit).
        valid: The engine recognised the action. An unrecognised one still costs a turn.
    """

    observation: str
    admissible: tuple[str, ...] | None
    reward: float
    score: float
    won: bool
    done: bool
    valid: bool


class Env(Protocol):
    """One running instance. Not shared between threads."""

    spec: EnvSpec

    def reset(self, task: Task, seed: int) -> StepResult:
        """Start ``task``. The same task and seed give the same episode for the same actions."""
        ...

    def step(self, action: str) -> StepResult:
        """Apply an action, sent verbatim."""
        ...

    def snapshot(self) -> Any:
        """Return the whole state as a value of this process: comparable and cheap to take."""
        ...

    def restore(self, snapshot: Any) -> StepResult:
        """Continue the task that was last reset from a snapshot of it; returns what was answered there."""
        ...

    def dump(self) -> bytes | None:
        """Return the state as bytes that can be stored, or None where it cannot.

        An oracle reads them; :meth:`load` does only where ``spec.fork == "value"``.
        """
        ...

    def load(self, task: Task, state: bytes) -> StepResult:
        """Continue ``task`` from dumped bytes, in any process; returns what the environment answered there.

        Raises:
            EnvironmentFault: The bytes are not a state of this task in this engine.
        """
        ...

    def state_hash(self) -> str:
        """Return a hash of everything that decides what follows."""
        ...

    def close(self) -> None:
        """Free what the instance holds."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """All that a student sees before a turn; wording turns it into prompt text.

    Attributes:
        instruction: The task, as the environment states it.
        history: The last observation/action pairs inside the window, oldest first. An observation here is
            the one the action answered.
        turn: Index of this turn, from 0.
        observation: Current observation.
        admissible: Admissible actions, or None.
        hint: Action named by a privileged hint, empty for a hint that only asks to reflect, or None. Never
            set in a training prompt.
        lesson: Privileged lesson of the episode, or None. Never set in a training prompt.
        skills: Skills of a bank, shown in front of the task. In training prompts only where the method
            trains on them.
    """

    instruction: str
    history: tuple[tuple[str, str], ...]
    turn: int
    observation: str
    admissible: tuple[str, ...] | None
    hint: str | None = None
    lesson: str | None = None
    skills: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed response.

    Attributes:
        action: Text sent to the environment. Always something, also for a malformed reply.
        committed: The response holds an action in the required form.
        valid: The response obeys every reply rule; False draws the invalid-action penalty.
        thought: The reasoning, for reading only.
    """

    action: str
    committed: bool
    valid: bool
    thought: str


class Wording(Protocol):
    """An environment's text: what the student reads and how its reply is read."""

    def prompt(self, view: View) -> str:
        """Render a view as one user message, hint, lesson and skills at their places when it has them."""
        ...

    def parse(self, response: str) -> Reply:
        """Read a response (docs/method.md, Replies and rewards). Total: every text gives a reply."""
        ...

    def action_span(self, response: str) -> tuple[int, int] | None:
        """Return where the committed action stands in a response (characters), or None without one."""
        ...

    def normal_form(self, action: str) -> str:
        """Return the form in which two actions are compared."""
        ...

    def leaks(self, response: str) -> bool:
        """Tell whether a recovery response mentions its hint (paper App. B)."""
        ...

    def privileged(self, prompt: str, *, skills_allowed: bool = False) -> bool:
        """Tell whether a prompt holds a privileged marker, so it must not be trained on.

        Args:
            prompt: A rendered prompt.
            skills_allowed: The method trains on prompts with skills: their marker is none then.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn of a finished episode, as a teacher reads it.

    Attributes:
        observation: What the student saw.
        action: What was sent to the environment.
        committed: False where the reply held no action in the required form.
    """

    observation: str
    action: str
    committed: bool


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A finished episode, as a teacher reads it.

    Attributes:
        instruction: The task, as the environment states it.
        won: The environment's verdict.
        termination: Why it ended.
        turns: Its turns, by index.
        last_observation: What the last action was answered, where it was executed.
    """

    instruction: str
    won: bool
    termination: str
    turns: tuple[PlayedTurn, ...]
    last_observation: str | None


ReplyForm = Literal["blocks", "json"]
"""How a labelling reply gives its actions: a block each after the JSON, or inside the JSON."""


class TeacherWording(Protocol):
    """An environment's text for a teacher that is a language model."""

    def label_prompt(self, episode: PlayedEpisode, max_candidates: int, form: ReplyForm) -> str:
        """Ask what went wrong in an episode and what should have been done, at most ``max_candidates`` turns.

        Instructions and format come first and are the same for all episodes, so that a server computes them
        once; the question comes last.
        """
        ...

    def query_prompt(self, view: View) -> str:
        """Ask for the single best next action in what the student sees: the view and nothing else."""
        ...

    def analysis_prompt(self, episode: PlayedEpisode, max_steps: int) -> str:
        """Ask for the skill that an episode teaches as a whole, and for at most ``max_steps`` single turns.

        The reply is a JSON object with ``episode_summary``, ``episode_skill`` and ``step_skills``.
        """
        ...

    def skill_prompt(self, episode: PlayedEpisode) -> str:
        """Ask for one reusable skill that an episode teaches; the reply is a JSON object with ``skill``."""
        ...


class TaskOracle(Protocol):
    """Exact knowledge of one task, for the oracle teacher and for diagnosis. Never used by a student."""

    def distance(self, state: bytes) -> int | None:
        """Return the least number of turns that completes the task from a state; None if unsolvable.

        Raises:
            SearchLimit: The search was given up; it says nothing about the state.
        """
        ...

    def best_actions(self, state: bytes, view: View | None) -> tuple[str, ...]:
        """Return the best next actions, the preferred one first; empty when there is none.

        Args:
            state: The state, as :meth:`Env.dump` gives it.
            view: What the student sees: only that is used, whatever the turn. None uses hidden objects too.
        """
        ...


class Environment(Protocol):
    """The face of an environment folder."""

    spec: EnvSpec
    wording: Wording
    teacher_wording: TeacherWording
    invalid_penalty: float

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, sorted by id. Raises EnvironmentFault when there are none."""
        ...

    def open(self) -> Env:
        """Return a fresh instance."""
        ...

    def instruction(self, task: Task) -> str:
        """Return the task as the student is told it."""
        ...

    def data_fingerprint(self, split: str) -> str:
        """Return a hash over the ids and contents of a split's tasks."""
        ...

    def distil(self, episode: PlayedEpisode) -> str | None:
        """Return a short skill by fixed rules: what a won episode did, or what a lost one should avoid.

        The same episode gives the same line. None where it teaches nothing.
        """
        ...

    def oracle(self, task: Task) -> TaskOracle:
        """Return the oracle of a task. Raises EnvironmentFault where the environment has none."""
        ...
