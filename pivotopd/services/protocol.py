"""What an engine's server says of itself, and how an error of its engine crosses the wire."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from pivotopd.errors import ArtifactError, ConfigError, EngineFault, NumericsError, PivotError
from pivotopd.section import Section

Role = Literal["policy", "teacher"]
"""What is served: the student, whose weights change, or a teacher, whose weights stay."""
PROTOCOL: Final = 2
"""Raised when a message changes its form."""
POLICY_HEADER: Final = "x-pivotopd-policy"
"""Header of a request: digest of the policy or teacher that should answer it."""
MESSAGE: Final = "application/octet-stream"
"""Type of a message in the wire form."""
FAILED: Final = 500
"""Status of an answer that is an error of the engine."""


class FlightGone(EngineFault):
    """A server no longer has the requests that a client has in flight there: they are sent again."""


_CARRIED: Final = {
    kind.__name__: kind for kind in (ArtifactError, ConfigError, EngineFault, FlightGone, NumericsError)
}


def program_of(role: Role) -> Literal["pivotopd policy server", "pivotopd teacher server"]:
    """Return the name of a server's program."""
    return "pivotopd teacher server" if role == "teacher" else "pivotopd policy server"


class Health(Section):
    """What a server is.

    Attributes:
        program: Tells it from any other server, and what it serves.
        protocol: Version of the messages.
        version: Version of the package.
        kind: What generates.
        dtype: Type of the weights.
        policy: Digest of the work that made them; a teacher's is that of its folder's content.
    """

    program: Literal["pivotopd policy server", "pivotopd teacher server"]
    protocol: int
    version: str
    kind: Literal["transformers", "vllm"]
    dtype: Literal["float32", "bfloat16"]
    policy: str

    @property
    def role(self) -> Role:
        """What is served."""
        return "teacher" if self.program == program_of("teacher") else "policy"


class Reload(Section):
    """The request to load other weights in place.

    Attributes:
        folder: Model folder, as the server's machine sees it.
        policy: Digest of the work that made it.
    """

    folder: str = Field(min_length=1)
    policy: str = Field(min_length=1)


class Failure(Section):
    """An error in its three parts; a class that does not cross the wire becomes an EngineFault."""

    kind: str
    what: str
    where: str | None = None
    mend: str | None = None

    @classmethod
    def of(cls, error: PivotError) -> Failure:
        """Return an error's parts."""
        return cls(kind=type(error).__name__, what=error.what, where=error.where, mend=error.mend)

    def error(self, url: str) -> PivotError:
        """Return the error again, with the address of the server that met it."""
        where = url if self.where is None else f"{url}: {self.where}"
        return _CARRIED.get(self.kind, EngineFault)(self.what, where=where, mend=self.mend)
