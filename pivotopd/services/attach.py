"""Attach a run to policy servers: the addresses of the section ``engine`` become one engine."""

from __future__ import annotations

import logging
from pathlib import Path

from pivotopd.engine_section import EngineSection
from pivotopd.errors import EngineFault
from pivotopd.models.base import PolicyEngine
from pivotopd.services.client import RemoteEngine
from pivotopd.services.pool import EnginePool

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
        for attached in engines.values():
            attached.close()
        raise
    if len(engines) == 1:
        return engines[section.urls[0]]
    return EnginePool(engines, section.concurrency)


def connect(section: EngineSection, url: str, *, dtype: str) -> RemoteEngine:
    """Return the server at one address, whatever policy it holds.

    Raises:
        EngineFault: It cannot be reached, or its draws would not be those that the run's digests promise.
    """
    engine = RemoteEngine(url)
    try:
        _check(section, engine, dtype)
    except EngineFault:
        engine.close()
        raise
    return engine


def _check(section: EngineSection, engine: RemoteEngine, dtype: str) -> None:
    """Refuse a server whose draws would not be those that the run's digests promise."""
    health = engine.health
    if health.kind not in (section.kind, section.fallback):
        raise EngineFault(
            f"the server generates with {health.kind}, the run wants {section.kind}",
            where=engine.url,
            mend=f"serve with engine.kind={section.kind}, or set engine.kind={health.kind} for the run",
        )
    if health.dtype != dtype:
        raise EngineFault(
            f"the server's weights are {health.dtype}, the run's {dtype}",
            where=engine.url,
            mend=f"serve with update.dtype={dtype}",
        )
