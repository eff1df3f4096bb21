"""Servers that a run talks to: MLflow, Prefect, a teacher behind an endpoint, policy and teacher servers."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from pivotopd.config import RunConfig
from pivotopd.doctor.finding import Finding, finding_of
from pivotopd.engine_section import EngineSection
from pivotopd.errors import TeacherError
from pivotopd.services.attach import connect, connect_teacher
from pivotopd.services.client import RemoteEngine
from pivotopd.teacher_section import EndpointSection, LocalSection
from pivotopd.tracking import tracking_uri, without_password

ANSWER_S: Final = 10.0
_TEACHER: Final = "teacher"


def mlflow(config: RunConfig) -> Iterator[Finding]:
    """Yield whether what the run tracks to answers."""
    if not config.tracking.enabled:
        yield Finding("MLflow", True, "off: tracking.enabled=false")
        return
    mend = "start the server, set tracking.uri or MLFLOW_TRACKING_URI, or set tracking.enabled=false"
    yield finding_of("MLflow", lambda: _tracked(tracking_uri(config.tracking.uri, config.root)), mend)


def _tracked(uri: str) -> str:
    if uri.startswith("sqlite:///"):
        return _database(Path(uri.removeprefix("sqlite:///")))
    if uri.startswith("http"):
        return _healthy(f"{uri.rstrip('/')}/health")
    return f"{without_password(uri)}: not a server or a sqlite file, so not looked at"


def _database(file: Path) -> str:
    if not file.exists():
        return f"{file} will be made"
    try:
        with sqlite3.connect(f"file:{file}?mode=rw", uri=True, timeout=2.0) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise RuntimeError(f"{file}: {error}") from error
    return f"{file}: {'can be written' if 'experiments' in tables or not tables else 'no tables of MLflow'}"


def _healthy(address: str) -> str:
    shown = without_password(address)
    try:
        answer = httpx.get(address, timeout=ANSWER_S)
    except httpx.HTTPError as error:
        raise ConnectionError(f"{shown} does not answer: {error}") from error
    if answer.status_code != httpx.codes.OK:
        raise ConnectionError(f"{shown} answers {answer.status_code}")
    return f"{shown} answers"


def prefect(api_url: str | None) -> Iterator[Finding]:
    """Yield whether the Prefect server answers; without one, each command starts its own for its time."""
    if not api_url:
        yield Finding("Prefect", True, "no server is set: each command starts a temporary one")
        return
    mend = "start it (`prefect server start`), or unset PREFECT_API_URL for a temporary one"
    yield finding_of("Prefect", partial(_healthy, f"{api_url.rstrip('/')}/health"), mend)


def teacher(config: RunConfig) -> Iterator[Finding]:
    """Yield whether a teacher behind an endpoint has its key, answers, and serves the model."""
    section = config.teacher
    if not isinstance(section, EndpointSection):
        return
    if section.api_key_variable is not None and not os.environ.get(section.api_key_variable):
        yield Finding(
            "teacher's key",
            False,
            f"the environment variable {section.api_key_variable} is not set",
            f"export {section.api_key_variable}=KEY where the run starts, or set teacher.api_key_variable",
        )
        return
    mend = "start the server, or set teacher.base_url to one that runs"
    yield finding_of(_TEACHER, lambda: _serving(section), mend)


def policy_servers(config: RunConfig) -> Iterator[Finding]:
    """Yield for each address of ``engine.urls`` whether the server that the run wants answers."""
    mend = "start it: `pivotopd serve policy`"
    for url in config.engine.urls:
        yield finding_of(
            f"policy server {url}", partial(_policy_server, url, config.engine, config.update.dtype), mend
        )


def _policy_server(url: str, section: EngineSection, dtype: str) -> str:
    return _held(connect(section, url, dtype=dtype))


def teacher_servers(config: RunConfig) -> Iterator[Finding]:
    """Yield for each address of ``teacher.urls`` whether a server answers that replies as the run wants.

    Which teacher it holds is told, and not compared: to name the run's, all of its weights must be read.
    """
    section = config.teacher
    if isinstance(section, LocalSection):
        for url in section.urls:
            answers = partial(_teacher_server, url, section)
            yield finding_of(f"teacher server {url}", answers, "start it: `pivotopd serve teacher`")


def _teacher_server(url: str, section: LocalSection) -> str:
    return _held(connect_teacher(section, url))


def _held(engine: RemoteEngine) -> str:
    with closing(engine):
        return f"{engine.health.kind}, {engine.health.dtype}, {engine.health.role} {engine.policy[:12]}"


def _serving(section: EndpointSection) -> str:
    key = os.environ.get(section.api_key_variable or "", "")
    address = f"{section.base_url}/models"
    try:
        answer = httpx.get(
            address, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=ANSWER_S
        )
    except httpx.HTTPError as error:
        raise ConnectionError(f"{address} does not answer: {error}") from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise TeacherError(
            f"the server refuses the key ({answer.status_code})",
            where=address,
            mend=f"set {section.api_key_variable or 'teacher.api_key_variable'} to a key of this server",
        )
    names = _models(answer)
    if section.model not in names:
        raise TeacherError(
            f"the server has no model {section.model!r}, only {', '.join(sorted(names)[:10]) or 'none'}",
            where=address,
            mend="set teacher.model to one of them",
        )
    return f"{section.model} at {section.base_url}"


def _models(answer: httpx.Response) -> set[str]:
    """Return the names in a list of models; RuntimeError where it is none."""
    try:
        listed = answer.raise_for_status().json()["data"]
        return {str(one["id"]) for one in listed}
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{answer.url} gives no list of models ({answer.status_code})") from error
