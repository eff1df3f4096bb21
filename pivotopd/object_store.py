"""Remote filesystems: how they are opened, what their failures mean, how long a passing one is waited out.

Endpoint and keys come from the usual environment variables (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_PROFILE``, ...), which botocore reads itself; no key is held or printed here.

Three layers would each try again: botocore a request, s3fs a call, and we an operation. Here botocore repeats
single requests a few times, so that one lost part does not repeat a large upload; s3fs repeats nothing; and
:func:`patiently` repeats operations until the patience is over. (Below them aiohttp sends a request once more
when a connection breaks, a PUT too.)
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import tenacity

from pivotopd.errors import ConfigError, PivotError, StorageError

logger = logging.getLogger("pivotopd.storage")

T = TypeVar("T")

PATIENCE: Final = "PIVOTOPD_STORAGE_PATIENCE_S"
"""Variable: seconds that one operation is tried again while a remote store fails in a passing way."""
TIMEOUT: Final = "PIVOTOPD_STORAGE_TIMEOUT_S"
"""Variable: seconds of silence after which a request counts as lost."""
DEFAULT_PATIENCE_S: Final = 120.0
DEFAULT_TIMEOUT_S: Final = 30.0
CONNECT_S: Final = 10.0
REQUEST_TRIES: Final = 3
MOST_TRANSFERS: Final = 4
"""Parts of one large file under way at once; each holds 50 MiB."""

BACKENDS: Final = frozenset(
    {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs", "paramiko"}
)
"""Packages whose exceptions are storage failures although they are not OSErrors."""
_S3: Final = ("s3://", "s3a://")
_LOST: Final = frozenset(
    {"HTTPClientError", "ConnectionError", "ResponseParserError", "ClientError", "IncompleteRead"}
)
"""Names of base classes in the backends that stand for a connection that was refused, lost or cut short."""
_PASSING_STATUS: Final = frozenset({408, 409, 425, 429})
"""Answers below 500 that ask to come again; 409 is a conditional write that met another one under way."""
_PASSING_CODES: Final = frozenset(
    {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "ThrottlingException"}
)
"""Codes that ask to come again, whatever status they come with: a time-out is a 400."""
_PASSING_ERRNO: Final = frozenset(
    {errno.EBUSY, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE}
)
_WRONG_KEYS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"}
)
_NO_KEYS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""How a full disk, or a used-up quota, is reported."""
_AGAIN: Final = "run the same command again: what is finished is kept"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a remote store is waited for.

    Attributes:
        patience_s: Seconds that one operation is tried again.
        timeout_s: Seconds of silence after which a request counts as lost.
    """

    patience_s: float
    timeout_s: float

    @classmethod
    def from_environment(cls) -> Limits:
        """Read the limits; ConfigError where a variable is no positive number."""
        return cls(_seconds(PATIENCE, DEFAULT_PATIENCE_S), _seconds(TIMEOUT, DEFAULT_TIMEOUT_S))


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise ConfigError(
            f"{text!r} is no number of seconds", where=f"${variable}", mend="give a number from 0 to 86400"
        )
    return value


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return this process's filesystem for an address, and the address's name on it.

    fsspec keeps one filesystem a process, thread and setting; nothing is kept here, so that a forked child
    opens its own.

    Args:
        address: A path or fsspec URI.

    Raises:
        ConfigError: The address or the endpoint cannot be one.
        StorageError: There is no filesystem for it.
    """
    import fsspec  # noqa: PLC0415 - late, so that a local root never loads a remote backend before a fork

    s3 = address.startswith(_S3)
    options = _s3_options(address) if s3 else {}
    try:
        filesystem, name = fsspec.core.url_to_fs(address, use_listings_cache=False, **options)
    except (ValueError, ImportError) as error:
        raise StorageError(
            f"not a usable address: {error}",
            where=address,
            mend="use a folder or an fsspec URI such as s3://bucket/folder, and install its package",
        ) from error
    if s3:
        filesystem.retries = 1  # see the module's first lines
    return filesystem, str(name)


def _s3_options(address: str) -> dict[str, Any]:
    """Return s3fs's settings; keys and endpoint are left to botocore."""
    bucket = address.partition("://")[2].partition("/")[0]
    if "@" in bucket:
        raise ConfigError(
            "an address holds no keys",
            where="the storage root",
            mend="write s3://bucket/folder, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if not bucket:
        raise ConfigError("the address names no bucket", where=address, mend="write s3://bucket/folder")
    limits = Limits.from_environment()
    config: dict[str, Any] = {
        "connect_timeout": min(CONNECT_S, limits.timeout_s),
        "read_timeout": limits.timeout_s,
        "retries": {"mode": "standard", "total_max_attempts": REQUEST_TRIES},
    }
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        endpoint = os.environ.get(variable)
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"{endpoint!r} is no address of a server",
                where=f"${variable}",
                mend="write http://HOST:PORT or https://HOST",
            )
        if endpoint:  # servers other than Amazon's rarely have a name for each bucket
            config["s3"] = {"addressing_style": "path"}
    return {"config_kwargs": config, "max_concurrency": MOST_TRANSFERS}


def patiently(where: str, attempt: Callable[[], T]) -> T:
    """Return what an attempt returns; try again while it fails in a passing way and the patience lasts.

    At least two attempts are made, however long one takes.

    Args:
        where: Address, for the warnings.
        attempt: The operation; what it raises at last is raised.
    """

    def warn(state: tenacity.RetryCallState) -> None:
        failure = None if state.outcome is None else state.outcome.exception()
        if state.attempt_number == 1 and failure is not None:
            logger.warning("%s: %s; trying again", where, reason(failure))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passing),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=15.0),
        stop=tenacity.stop_all(
            tenacity.stop_after_attempt(2), tenacity.stop_after_delay(Limits.from_environment().patience_s)
        ),
        before_sleep=warn,
        reraise=True,
    )
    return retrying(attempt)


def passing(error: BaseException) -> bool:
    """Say whether a failure may be over in a moment: overload, a lost connection, a time-out."""
    status = _status(error)
    if status is not None:
        busy = (status >= 500 and status != 501) or status in _PASSING_STATUS
        return busy or _code(error) in _PASSING_CODES
    if isinstance(error, FileNotFoundError | PermissionError | FileExistsError):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNO:
        return True
    return _of_backend(error) and any(kind.__name__ in _LOST for kind in type(error).__mro__)


def truly_missing(error: FileNotFoundError) -> bool:
    """Say whether a store answers that there is no such file, and not that there is no such bucket."""
    code = _code(error)
    return code is None or code == "NoSuchKey"


def failure(action: str, where: str, error: Exception) -> PivotError | None:
    """Return what a person is told of a filesystem's failure, or None where it is no such failure.

    Wrong or missing keys and names that no bucket has are a ConfigError: they are set, and no second try
    mends them. All else is a StorageError.
    """
    if not isinstance(error, OSError) and not _of_backend(error):
        return None
    kind, code = type(error).__name__, _code(error)
    if code in _WRONG_KEYS:
        return ConfigError(
            f"cannot {action}: the store refuses the keys: {reason(error)}",
            where=where,
            mend="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys of the server at AWS_ENDPOINT_URL",
        )
    if kind in _NO_KEYS:
        return ConfigError(
            f"cannot {action}: no keys are set: {reason(error)}",
            where=where,
            mend="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if kind == "ParamValidationError" or code == "InvalidBucketName":
        return ConfigError(
            f"cannot {action}: {reason(error)}", where=where, mend="name a bucket: s3://bucket/folder"
        )
    if code == "NoSuchBucket":
        return StorageError(
            f"cannot {action}: there is no such bucket",
            where=where,
            mend="make the bucket, or set another `root`; check that AWS_ENDPOINT_URL is the server you mean",
        )
    return StorageError(f"cannot {action}: {reason(error)}", where=where, mend=_mend(error))


def reason(error: BaseException) -> str:
    """Return a failure's own words in one line."""
    strerror = getattr(error, "strerror", None)
    text = strerror if isinstance(strerror, str) and strerror else str(error) or type(error).__name__
    status = _status(error)
    words = " ".join(text.split())
    return words if status is None or str(status) in words else f"{words} (HTTP {status})"


def _mend(error: Exception) -> str:
    if passing(error):
        return f"the store was tried again for a while (${PATIENCE}); when it is in reach, {_AGAIN}"
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return "free some space or set another `root`, then run the same command again"
    if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EROFS:
        return "give the user write access, or set another `root`"
    if _of_backend(error) or _code(error) is not None:
        return f"check the address, the network and the credentials, then {_AGAIN}"
    return "check the path and that its filesystem is in reach, then run the same command again"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _of_backend(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in BACKENDS for kind in type(error).__mro__)


def _code(error: BaseException) -> str | None:
    """Return the error code that a server gave, such as ``SlowDown`` or ``404``."""
    for cause in _chain(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code"))
    return None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that a server gave."""
    for cause in _chain(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status if isinstance(status, int) else None
    return None
