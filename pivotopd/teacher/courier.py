"""Questions to a teacher while other work goes on: all that wait are asked at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from typing import Final, Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


LINGER_S: Final = 0.02
"""How long a first question waits for others that come with it, such as those of one round of a rollout."""


class Courier(Generic[Q, A]):
    """Brings questions to a teacher and answers back; a teacher is never asked by two threads.

    Args:
        answer: Answers questions, in order.
        waits: The teacher is far away: a thread waits for it, and what was asked meanwhile goes together.
            Otherwise the questions are answered where they are asked.
        linger_s: How long the thread waits for more questions before it asks the first ones.
    """

    def __init__(
        self, answer: Callable[[Sequence[Q]], Sequence[A]], *, waits: bool, linger_s: float = LINGER_S
    ) -> None:
        self._answer = answer
        self._linger_s = linger_s
        self._hurry = Event()
        self._thread = ThreadPoolExecutor(1, "teacher") if waits else None
        self._lock = Lock()
        self._waiting: list[tuple[Sequence[Q], Future[Sequence[A]]]] = []

    def ask(self, questions: Sequence[Q]) -> Future[Sequence[A]]:
        """Return what will hold the answers, or the teacher's error."""
        promise: Future[Sequence[A]] = Future()
        with self._lock:
            if not self._waiting:
                self._hurry.clear()
            self._waiting.append((questions, promise))
        if self._thread is None:
            self._serve()
        else:
            self._thread.submit(self._serve_late)
        return promise

    def hurry(self) -> None:
        """Ask at once: nothing more comes before these are answered."""
        self._hurry.set()

    def close(self) -> None:
        """Ask nothing more; an answer that is under way is waited for only by the end of the process."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _serve_late(self) -> None:
        """Answer what waits, and what comes with it."""
        if self._waiting:
            self._hurry.wait(self._linger_s)
            self._serve()

    def _serve(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        if not taken:
            return
        try:
            answers = list(self._answer([one for questions, _ in taken for one in questions]))
        except Exception as error:
            for _, promise in taken:
                promise.set_exception(error)
            return
        start = 0
        for questions, promise in taken:
            promise.set_result(answers[start : start + len(questions)])
            start += len(questions)
