"""An environment whose instances live in worker processes: many play at once, with the same results.

An instance stays in the process of its first task; instances of one task share a process where that keeps the
load even, since engines remember what they read of a game. A process that ends is started again and its
instances are played again up to where they were, every answer compared. An episode that ends its process
twice is given up alone.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Final

from pivotopd.config import EnvironmentSection
from pivotopd.environments.ahead import Answer
from pivotopd.environments.base import Env, Environment, StepResult, Task
from pivotopd.environments.worker_process import STARTED, Failure, Order, Stand, What, serve
from pivotopd.environments.wrapped import WrappedEnvironment
from pivotopd.errors import ClusterError, EnvironmentFault, ReplayDivergence
from pivotopd.stops import interrupt_held_back

TRIES: Final = 2
"""How often an episode's calls may end their process."""
DEATHS: Final = 3
"""How often in a row a process may end before it is ready."""
UNEVEN: Final = 2
"""How many instances more than another a process may have, to keep a task's instances together."""
_STOP_S: Final = 5.0


class WorkerEnvironment(WrappedEnvironment):
    """Another environment, played by processes. They start with the first instance.

    Args:
        inner: The environment; tasks, texts and oracles are its own.
        section: What the processes open.
        workers: Number of processes, at least 1.
    """

    def __init__(self, inner: Environment, section: EnvironmentSection, workers: int) -> None:
        super().__init__(inner)
        self._section, self._count = section, workers
        self._workers: list[_Worker] = []
        self._homes: dict[str, _Worker] = {}

    def open(self) -> Env:
        """Return a fresh instance."""
        if not self._workers:
            self._workers = [_Worker(self._section) for _ in range(self._count)]
        return WorkerEnv(self)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes that run."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def close(self) -> None:
        """End the processes; instances are of no use afterwards, new ones start them again."""
        while self._workers:
            self._workers.pop().close()
        self._homes.clear()

    def home(self, task: Task | None) -> _Worker:
        """Return the process for an instance that begins with a task."""
        least = min(self._workers, key=lambda worker: len(worker.members))
        if task is None:
            return least
        home = self._homes.setdefault(task.id, least)
        return home if len(home.members) <= len(least.members) + UNEVEN else least


@dataclass(eq=False, slots=True)
class _Call:
    """A call under way, or done."""

    env: WorkerEnv
    what: What
    arguments: tuple[Any, ...]
    answer: Stand | Failure | None = None
    expected: Stand | None = None


class WorkerEnv:
    """An instance in a worker process; implements :class:`~pivotopd.environments.base.Env` and ``Ahead``.

    Attributes:
        restarts: How often its process had to be started again while this one waited.
        history: The calls that led to where it stands, those under way too.
        deaths: How often in this episode its process ended in a call of its own.
        broken: What differed when the episode was played again in another process.
    """

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment, self.spec = environment, environment.spec
        self._worker: _Worker | None = None
        self._stand: Stand | None = None
        self.slot = 0
        self.history: list[_Call] = []
        self.broken: ReplayDivergence | None = None
        self.restarts = self.deaths = 0

    def reset(self, task: Task, seed: int) -> StepResult:
        """Start a task."""
        return self.begin_reset(task, seed)()

    def step(self, action: str) -> StepResult:
        """Apply an action."""
        return self.begin_step(action)()

    def begin_reset(self, task: Task, seed: int) -> Answer:
        """Begin to start a task."""
        return self._begin("reset", task, seed, first=task)

    def begin_step(self, action: str) -> Answer:
        """Begin to apply an action."""
        return self._begin("step", action)

    def begin_load(self, task: Task, state: bytes) -> Answer:
        """Begin to continue a task from dumped bytes."""
        return self._begin("load", task, state, first=task)

    def load(self, task: Task, state: bytes) -> StepResult:
        """Continue a task from dumped bytes."""
        return self.begin_load(task, state)()

    def restore(self, snapshot: Any) -> StepResult:
        """Continue from a snapshot of the task that was last reset."""
        return self._begin("restore", snapshot)()

    def snapshot(self) -> Any:
        """Return the whole state as a value. No call may be under way."""
        call = self._send("snapshot", ())
        return self._wait(call).value

    def dump(self) -> bytes | None:
        """Return the state as bytes, as of the last answer that was waited for."""
        return self._standing.state

    def state_hash(self) -> str:
        """Return a hash of everything that decides what follows, as of the last answer waited for."""
        return self._standing.state_hash

    def close(self) -> None:
        """Give the instance back; answers under way are dropped."""
        if self._worker is not None:
            self._worker.leave(self)
        self._worker, self._stand, self.history = None, None, []

    @property
    def _standing(self) -> Stand:
        if self._stand is None:
            raise self._no_episode()
        return self._stand

    def _no_episode(self) -> EnvironmentFault:
        return EnvironmentFault("No episode has been started.", where=self.spec.name, mend="call reset first")

    def _begin(self, what: What, *arguments: Any, first: Task | None = None) -> Answer:
        if first is not None:
            self.history, self.broken, self.deaths = [], None, 0
        elif what == "restore":
            del self.history[1:]
        call = self._send(what, arguments, first)
        self.history.append(call)

        def answered() -> StepResult:
            try:
                self._stand = self._wait(call)
            except BaseException:
                if first is not None:  # there is no episode, whatever the process has in that place
                    self.history = []
                raise
            result: StepResult = self._stand.value
            return result

        return answered

    def _send(self, what: What, arguments: tuple[Any, ...], first: Task | None = None) -> _Call:
        if first is None and not self.history:  # the process may have an instance with another's episode
            raise self._no_episode()
        if self._worker is None:
            self._worker = self._environment.home(first)
            self._worker.join(self)
        call = _Call(self, what, arguments)
        self._worker.send(call)
        return call

    def _wait(self, call: _Call) -> Stand:
        if self._worker is None:
            raise EnvironmentFault("The instance is closed.", where=self.spec.name)
        answer = self._worker.wait(call)
        if self.broken is not None:
            raise self.broken
        if isinstance(answer, Stand):
            return answer
        if answer.error is not None:
            raise answer.error
        raise RuntimeError(f"a worker process of the environment failed:\n{answer.text}")


class _Worker:
    """A worker process, seen from here. Several threads may use it, one at a time."""

    def __init__(self, section: EnvironmentSection) -> None:
        self._section = section
        self.members: dict[int, WorkerEnv] = {}
        self._calls: dict[int, _Call] = {}
        self._numbers, self._slots = itertools.count(), itertools.count()
        self._lock = threading.RLock()
        self._deaths = 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take CUDA and threads along
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(self._section, theirs), name="environment worker", daemon=True
        )
        resource_tracker.ensure_running()  # else it begins below, and lets Ctrl-C through again
        with interrupt_held_back():  # the process ignores it once it is up: this side decides
            self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def join(self, env: WorkerEnv) -> None:
        """Take an instance in."""
        with self._lock:
            env.slot = next(self._slots)
            self.members[env.slot] = env

    def leave(self, env: WorkerEnv) -> None:
        """Let an instance go, with its calls under way."""
        with self._lock:
            if self.members.pop(env.slot, None) is not None:
                self._calls = {number: call for number, call in self._calls.items() if call.env is not env}
                self._post([Order(next(self._numbers), env.slot, "close")])

    def send(self, call: _Call) -> None:
        """Begin a call."""
        with self._lock:
            self._post(self._orders([call]))

    def wait(self, call: _Call) -> Stand | Failure:
        """Return a call's answer."""
        with self._lock:
            while call.answer is None:
                self._receive(call.env)
            return call.answer

    def close(self) -> None:
        """End the process: an idle one leaves by itself, else it is killed."""
        self._pipe.close()
        self.process.join(_STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _orders(self, calls: Iterable[_Call]) -> Iterator[Order]:
        for call in calls:
            number = next(self._numbers)
            self._calls[number] = call
            yield Order(number, call.env.slot, call.what, call.arguments)

    def _post(self, orders: Iterable[Order]) -> None:
        """Send orders; where the process has ended, whoever waits next finds that out."""
        for order in orders:
            try:
                self._pipe.send(order)
            except OSError:
                continue

    def _receive(self, waiting: WorkerEnv) -> None:
        try:
            number, answer = self._pipe.recv()
        except (EOFError, OSError):
            waiting.restarts += 1
            self._restart()
            return
        if number == STARTED:
            self._deaths = 0
            return
        call = self._calls.pop(number, None)
        if call is None:  # its instance has been closed
            return
        call.answer = answer
        if call.expected is not None and answer != call.expected:
            call.env.broken = ReplayDivergence(
                "after a worker process ended, the same actions lead elsewhere",
                where=f"action {call.arguments!r}",
                mend="the environment is not deterministic here: please report it",
            )

    def _restart(self) -> None:
        """Start the process again, and play its instances up to where they were."""
        self.process.join(_STOP_S)
        code = self.process.exitcode
        self.close()
        self._deaths += 1
        if self._deaths > DEATHS:
            raise ClusterError(
                f"a worker process of the environment ended {self._deaths} times before it was ready, "
                f"the last time with exit code {code}",
                where="environment.workers",
                mend="see the messages above; lower environment.workers where memory is short; 0 uses none",
            )
        left = list(self._calls.values())
        if self._deaths == 1:  # it had started: what it was doing ended it, or someone else
            left = self._without_culprit(left, code)
        left = [call for call in left if call.expected is None]  # what was played again is so once more
        self._calls = {}
        self._start()
        again = [
            _Call(env, call.what, call.arguments, expected=call.answer)
            for env in self.members.values()
            for call in env.history
            if isinstance(call.answer, Stand)
        ]
        self._post(self._orders([*again, *left]))

    @staticmethod
    def _without_culprit(calls: list[_Call], code: int | None) -> list[_Call]:
        """Give up the instance whose call the process ended in, where that is not the first time."""
        if not calls:
            return calls
        culprit = calls[0]  # a process answers in order
        culprit.env.deaths += 1
        if culprit.env.deaths < TRIES:
            return calls
        fault = Failure(
            EnvironmentFault(
                f"the process that played this episode ended {TRIES} times, at last with exit code {code}",
                where=f"{culprit.what} {culprit.arguments!r}"[:200],
                mend="set environment.workers=0 to see the engine's own message",
            )
        )
        culprit.env.history = []
        for call in calls:
            if call.env is culprit.env:
                call.answer = fault
        return [call for call in calls if call.env is not culprit.env]
