"""The cluster's API through kubectl, which knows how to sign in: one request a call, JSON both ways."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from typing import Any, Final

from pivotopd.errors import ClusterError, ConfigError

TIMEOUT_S: Final = 60
_SAID: Final = re.compile(r"Error from server(?: \((?P<reason>\w+)\))?: (?P<message>.*)", re.DOTALL)
_REFUSED: Final = re.compile(r"(You must be logged in|The .* is invalid).*", re.DOTALL)
"""How kubectl tells of 401 and 422."""
_MEND: Final = "see the message; `kubectl auth can-i create jobs` tells what you may do"
_PASSING: Final = frozenset(
    {"InternalError", "ServerTimeout", "ServiceUnavailable", "Timeout", "TooManyRequests", "Unknown"}
)
"""Reasons of the server that say nothing about the request: ask again."""


class NotThere(ConfigError):
    """The object does not exist, or the cluster knows no such kind."""


class AlreadyThere(ConfigError):
    """An object of this name exists."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A client of the cluster.

    Attributes:
        program: Name or path of kubectl.
        context: Its context; None takes the current one.
    """

    program: str
    context: str | None = None

    def get(self, path: str) -> Any:
        """Return the object or list at a path of the API."""
        return _json(path, self.read(path))

    def read(self, path: str) -> str:
        """Return the text at a path of the API, such as a pod's log."""
        return self._ask("get", path)

    def create(self, path: str, manifest: dict[str, Any]) -> None:
        """Create an object below a path; the server refuses fields that it does not know."""
        self._ask("create", f"{path}?fieldValidation=Strict", json.dumps(manifest))

    def delete(self, path: str) -> None:
        """Delete an object, and in the background what belongs to it."""
        self._ask("delete", f"{path}?propagationPolicy=Background")

    def _ask(self, verb: str, path: str, body: str | None = None) -> str:
        """Ask once, and return the answer.

        Raises:
            NotThere: The server says 404.
            AlreadyThere: The server says 409, of a name.
            ConfigError: kubectl is missing, or the server refuses.
            ClusterError: The server cannot be reached, or has trouble of its own.
        """
        context = [] if self.context is None else [f"--context={self.context}"]
        command = [self.program, *context, f"--request-timeout={TIMEOUT_S}s", verb, "--raw", path]
        if body is not None:
            command += ["-f", "-"]
        try:
            done = subprocess.run(  # noqa: S603 - the program that the configuration names
                command,
                input=body,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.program!r} is not here",
                where="launch.kubernetes.kubectl",
                mend="install kubectl, or show the manifests with --dry-run",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise _unreachable(path, f"no answer in {2 * TIMEOUT_S} s") from error
        if done.returncode:
            raise _error(path, done.stderr.strip())
        return done.stdout


def _json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreachable(path, "the answer is no JSON") from error


def _error(path: str, said: str) -> Exception:
    """Return the error behind kubectl's message."""
    found = _SAID.search(said)
    refused = _REFUSED.search(said)
    if refused is not None:
        return ConfigError(f"the cluster refuses: {refused[0]}", where=path, mend=_MEND)
    if found is None:
        return _unreachable(path, said.splitlines()[-1] if said else "kubectl says nothing")
    reason, message = found["reason"] or "Unknown", found["message"].strip()
    if reason in _PASSING:
        return _unreachable(path, message)
    kind = {"NotFound": NotThere, "AlreadyExists": AlreadyThere}.get(reason, ConfigError)
    return kind(
        f"the cluster refuses: {message} ({reason})",
        where=path,
        mend=_MEND,
    )


def _unreachable(path: str, why: str) -> ClusterError:
    return ClusterError(
        f"the cluster cannot be reached: {why[:300]}",
        where=path,
        mend="see whether `kubectl get --raw /readyz` answers, then start the same command again",
    )
