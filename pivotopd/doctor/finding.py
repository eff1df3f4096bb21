"""What a check finds, and the bound on how long it may look."""

from __future__ import annotations

import contextvars
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pivotopd.errors import PivotError

CHECK_S: Final = 30.0
"""Longest a check may take; one that imports large libraries may take ``IMPORT_S``."""
IMPORT_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        what: What was looked for.
        ok: It was found and works.
        detail: Version, path, or what went wrong.
        mend: What to do when it is missing.
        required: A run cannot do without it.
    """

    what: str
    ok: bool
    detail: str
    mend: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One look at one thing.

    Attributes:
        what: Its name, for the finding of a check that takes too long.
        look: Yields findings.
        limit_s: Longest it may take.
        required: A run cannot do without what it looks for.
    """

    what: str
    look: Callable[[], Iterator[Finding]]
    limit_s: float = CHECK_S
    required: bool = True


def carried_out(check: Check) -> Iterator[Finding]:
    """Yield what a check finds, and as a last finding that it took too long.

    The look happens in a thread of its own, which is left behind when its time is over.
    """
    found: queue.Queue[Finding | BaseException | None] = queue.Queue()

    def body() -> None:
        try:
            for finding in check.look():
                found.put(finding)
        except BaseException as error:
            found.put(error)
        else:
            found.put(None)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(body,), daemon=True)
    thread.start()
    deadline = _Deadline(check.limit_s)
    while True:
        try:
            one = found.get(timeout=deadline.left_s)
        except queue.Empty:
            said = f"no answer within {check.limit_s:g} s"
            yield Finding(check.what, False, said, "see whether it hangs, and try again", check.required)
            return
        if one is None:
            return
        if isinstance(one, BaseException):
            raise one
        yield one


class _Deadline:
    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, never none at all: what is there already is taken."""
        return max(0.001, self._end - time.monotonic())


def finding_of(what: str, look: Callable[[], str], mend: str, *, required: bool = True) -> Finding:
    """Turn a look-up that may fail into a finding; a library that fails to load can raise almost anything.

    An error of ours tells itself how to mend it.
    """
    try:
        return Finding(what, True, look(), mend, required)
    except PivotError as error:
        where = f" ({error.where})" if error.where else ""
        return Finding(what, False, f"{error.what}{where}", error.mend or mend, required)
    except (ImportError, OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        detail = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(what, False, detail, mend, required)
