"""Attach a run to servers: the addresses of ``engine.urls`` or ``teacher.urls`` become one engine."""

from __future__ import annotations

import logging
from pathlib import Path

from pivotopd.engine_section import EngineSection
from pivotopd.errors import EngineFault
from pivotopd.models.base import PolicyEngine
from pivotopd.services.client import RemoteEngine
from pivotopd.services.pool import EnginePool
from pivotopd.services.protocol import Role
from pivotopd.teacher_section import LocalSection

logger = logging.getLogger(__name__)


def attach(section: EngineSection, folder: Path, policy: str, *, dtype: str) -> PolicyEngine:
    """Return the engine behind ``section.urls``, with a policy in it.

    A server that holds another policy loads this one in place.

    Args:
        section: Section ``engine``, with one address or more.
        folder: Model folder of the policy, which every server's machine must see under the same path.
        policy: Digest of the work that made it.
        dtype: Type of the weights that the run expects.

    Raises:
        EngineFault: An address cannot be reached, or what answers is not the server that is needed.
        ArtifactError: A server cannot load the folder.
    """
    engines: dict[str, PolicyEngine] = {}
    try:
        for url in section.urls:
            engine = connect(section, url, dtype=dtype)
            engines[url] = engine
            if engine.policy != policy:
                logger.info("%s loads policy %s", url, policy)
                engine.reload(folder, policy)
    except BaseException:
        _let_go(engines)
        raise
    return _joined(engines, section.concurrency, "policy")


def connect(section: EngineSection, url: str, *, dtype: str) -> RemoteEngine:
    """Return the policy server at one address, whatever policy it holds.

    Raises:
        EngineFault: It cannot be reached, or its draws would not be those that the run's digests promise.
    """
    engine = RemoteEngine(url)
    try:
        _check(engine, section.kind, "engine.kind", dtype, "update.dtype", section.fallback)
    except EngineFault:
        engine.close()
        raise
    return engine


def attach_teacher(section: LocalSection, digest: str) -> PolicyEngine:
    """Return the engine behind a local teacher's ``urls``; nothing is loaded.

    Args:
        section: The teacher's section, with one address or more.
        digest: Digest of its folder's content.

    Raises:
        EngineFault: An address cannot be reached, or what answers is not this teacher.
    """
    engines: dict[str, PolicyEngine] = {}
    try:
        for url in section.urls:
            engines[url] = engine = connect_teacher(section, url)
            if engine.policy != digest:
                raise EngineFault(
                    f"the server holds teacher {engine.policy[:12]}, the run's is {digest[:12]}",
                    where=url,
                    mend=f"serve the run's (`pivotopd serve teacher {section.path}`), or set teacher.path to "
                    "the folder that is served",
                )
    except BaseException:
        _let_go(engines)
        raise
    return _joined(engines, section.concurrency, "teacher")


def connect_teacher(section: LocalSection, url: str) -> RemoteEngine:
    """Return the teacher server at one address, whichever teacher it holds.

    Raises:
        EngineFault: It cannot be reached, or would give other replies than the run's settings.
    """
    engine = RemoteEngine(url, "teacher")
    try:
        _check(engine, section.engine, "teacher.engine", section.dtype, "teacher.dtype")
    except EngineFault:
        engine.close()
        raise
    return engine


def _joined(engines: dict[str, PolicyEngine], in_flight: int, role: Role) -> PolicyEngine:
    return next(iter(engines.values())) if len(engines) == 1 else EnginePool(engines, in_flight, role)


def _let_go(engines: dict[str, PolicyEngine]) -> None:
    for attached in engines.values():
        attached.close()


def _check(
    engine: RemoteEngine, kind: str, kind_key: str, dtype: str, dtype_key: str, fallback: str = "none"
) -> None:
    """Refuse a server whose draws would not be those that the run's digests promise."""
    health = engine.health
    if health.kind not in (kind, fallback):
        raise EngineFault(
            f"the server generates with {health.kind}, the run wants {kind}",
            where=engine.url,
            mend=f"serve with {kind_key}={kind}, or set {kind_key}={health.kind} for the run",
        )
    if health.dtype != dtype:
        raise EngineFault(
            f"the server's weights are {health.dtype}, the run's {dtype}",
            where=engine.url,
            mend=f"serve with {dtype_key}={dtype}",
        )
