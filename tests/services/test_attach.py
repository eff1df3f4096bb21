"""Attaching: each server gets the run's policy, and one that would draw otherwise is refused."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from pivotopd.config import RunConfig
from pivotopd.doctor.services import policy_servers, teacher_servers
from pivotopd.engine_section import EngineSection
from pivotopd.errors import ArtifactError, EngineFault
from pivotopd.services.attach import attach, attach_teacher
from pivotopd.services.pool import EnginePool
from pivotopd.teacher_section import LocalSection
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


# ------------------------------------------------------------------ teachers


def teaching(*urls: str, **changes: object) -> LocalSection:
    return LocalSection.model_validate({"path": "teacher", "dtype": "float32", "urls": urls} | changes)


def test_a_teacher_is_asked_where_it_is_served_over_all_its_servers() -> None:
    engines = [Seeded("a"), Seeded("a")]
    with ExitStack() as stack:
        urls = [stack.enter_context(running(engine, "teacher")) for engine in engines]
        with closing(attach_teacher(teaching(*urls, concurrency=3), "a")) as pool:
            assert isinstance(pool, EnginePool)
            got = pool.generate(REQUESTS, SAMPLING)
            engines[0].calls = engines[1].calls = 0
            with pytest.raises(EngineFault, match="no teacher engine is left"):
                pool.generate(REQUESTS, SAMPLING)
    assert drawn(got) == drawn(Seeded().generate(REQUESTS, SAMPLING))
    assert [sum(engine.sizes) for engine in engines] == [10, 10]
    assert max(engines[0].sizes + engines[1].sizes) <= 3


def test_a_server_with_another_teacher_is_refused_and_keeps_it() -> None:
    right, wrong = Seeded("a"), Seeded("b")
    with (
        running(right, "teacher") as one,
        running(wrong, "teacher") as two,
        pytest.raises(EngineFault, match="holds teacher b, the run's is a") as error,
    ):
        attach_teacher(teaching(one, two), "a")
    assert error.value.where == two
    assert "pivotopd serve teacher teacher" in str(error.value)
    assert (right.policy, wrong.policy) == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "message", "key"),
    [
        ({"engine": "vllm"}, "generates with transformers", "teacher.engine=vllm"),
        ({"dtype": "bfloat16"}, "weights are float32", "teacher.dtype=bfloat16"),
    ],
)
def test_a_server_that_replies_otherwise_is_refused(changes: dict[str, str], message: str, key: str) -> None:
    with running(Seeded("a"), "teacher") as url, pytest.raises(EngineFault, match=message) as error:
        attach_teacher(teaching(url, **changes), "a")
    assert url in str(error.value)
    assert key in str(error.value)


def test_the_doctor_looks_at_each_teacher_server() -> None:
    with running(Seeded("a"), "teacher") as good_url, running(Seeded("a")) as policy_url:
        section = teaching(good_url, policy_url, "http://127.0.0.1:1")
        good, other, bad = teacher_servers(RunConfig(teacher=section))
    assert (good.ok, good.detail) == (True, "transformers, float32, teacher a")
    assert not other.ok
    assert "a policy server, not a teacher server" in other.detail
    assert not bad.ok
    assert "pivotopd serve teacher" in bad.mend
    assert list(teacher_servers(RunConfig())) == []
