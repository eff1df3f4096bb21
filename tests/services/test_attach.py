"""Attaching: each server gets the run's policy, and one that would draw otherwise is refused."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from pivotopd.config import RunConfig
from pivotopd.doctor.services import policy_servers
from pivotopd.engine_section import EngineSection
from pivotopd.errors import ArtifactError, EngineFault
from pivotopd.services.attach import attach
from pivotopd.services.pool import EnginePool
from tests.services.seeded import REQUESTS, SAMPLING, Seeded, drawn
from tests.services.test_server import running

FOLDER = Path("next")


def test_servers_of_other_policies_load_the_runs() -> None:
    engines = [Seeded("a"), Seeded("b"), Seeded("c")]
    with ExitStack() as stack:
        urls = [stack.enter_context(running(engine)) for engine in engines]
        with closing(attach(EngineSection(urls=urls), FOLDER, "b", dtype="float32")) as pool:
            assert isinstance(pool, EnginePool)
            got = pool.generate(REQUESTS, SAMPLING)
    assert drawn(got) == drawn(Seeded().generate(REQUESTS, SAMPLING))
    assert [engine.policy for engine in engines] == ["b", "b", "b"]
    assert [sum(engine.sizes) for engine in engines] == [7, 7, 6]


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [("vllm", "float32", "generates with transformers"), ("transformers", "bfloat16", "weights are float32")],
)
def test_a_server_that_draws_otherwise_is_refused(kind: str, dtype: str, message: str) -> None:
    engine = Seeded("a")
    with running(engine) as url, pytest.raises(EngineFault, match=message) as error:
        attach(EngineSection.model_validate({"kind": kind, "urls": [url]}), FOLDER, "b", dtype=dtype)
    assert url in str(error.value)
    assert engine.policy == "a"


def test_a_server_stands_in_where_a_fallback_is_allowed() -> None:
    with running(Seeded("a")) as url:
        section = EngineSection(kind="vllm", fallback="transformers", urls=[url])
        attach(section, FOLDER, "a", dtype="float32").close()


def test_a_server_that_cannot_load_the_policy_ends_the_attempt() -> None:
    with running(Seeded("a", loads=False)) as url, pytest.raises(ArtifactError) as error:
        attach(EngineSection(urls=[url]), FOLDER, "b", dtype="float32")
    assert url in str(error.value)


def test_the_doctor_looks_at_each_server() -> None:
    with running(Seeded("a")) as url:
        config = RunConfig(engine=EngineSection(urls=[url, "http://127.0.0.1:1"]))
        good, bad = policy_servers(config)
    assert (good.ok, good.detail) == (True, "transformers, float32, policy a")
    assert not bad.ok
    assert "http://127.0.0.1:1" in bad.detail
    assert "pivotopd serve policy" in bad.mend
    assert list(policy_servers(RunConfig())) == []
