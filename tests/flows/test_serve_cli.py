"""``pivotopd serve``: what cannot be served is refused before a model is loaded."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from pivotopd.config import RunConfig
from pivotopd.config_files import apply_overrides
from pivotopd.errors import ArtifactError, ConfigError, PivotError
from pivotopd.services.server import EngineServer
from pivotopd.teacher_section import LocalSection
from stages.plan import Plan
from stages.runs import open_run
from stages.serving import served_policy, served_teacher
from tests.flows.runs import ROOT
from tests.small_student import small_config


def refused(*arguments: str, role: str = "policy") -> PivotError:
    done = CliRunner().invoke(app, ["serve", role, *arguments])
    assert isinstance(done.exception, PivotError), done.output
    return done.exception


@pytest.mark.parametrize("role", ["policy", "teacher"])
def test_a_taken_port_is_refused(student: Path, role: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        error = refused(str(student), "--port", port, role=role)
    assert error.exit_code == 2
    assert port in str(error)


@pytest.mark.parametrize("role", ["policy", "teacher"])
def test_loading_is_said_beside_the_announcement(tmp_path: Path, role: str) -> None:
    """The first line of the output stays the address of a server that answers."""
    done = CliRunner().invoke(app, ["serve", role, str(tmp_path / "nothing"), "--port", "0"])
    assert isinstance(done.exception, ArtifactError)
    assert done.stderr.startswith(f"loading {tmp_path / 'nothing'}, to be served at http://127.0.0.1:")
    assert not done.stdout


def test_what_is_no_policy_is_refused(student: Path, tmp_path: Path) -> None:
    assert isinstance(refused(str(tmp_path / "nothing"), "--port", "0"), ArtifactError)
    assert "--iteration" in str(refused(str(student), "--port", "0", "--iteration", "2"))
    assert "--config" in str(refused(str(tmp_path), "--port", "0", "--config", "x.yaml"))
    assert "engine.kind" in str(refused(str(student), "engine.kind=other", "--port", "0"))


def test_a_model_is_served_under_the_digest_that_a_run_gives_it(student: Path) -> None:
    served = served_policy(str(student), None, str(ROOT / "configs" / "demo.yaml"), ["update.dtype=bfloat16"])
    server = served.start()
    assert isinstance(server, EngineServer)
    assert (server.health.policy, server.health.kind) == (served.digest, "transformers")
    assert server.health.dtype == "bfloat16"
    server.close()


def local(path: Path, **changes: object) -> dict[str, object]:
    return {"kind": "local", "path": str(path), "prompt_tokens": 256, "reply_tokens": 16, **changes}


def test_what_is_no_teacher_is_refused(student: Path, tmp_path: Path) -> None:
    assert isinstance(refused(str(tmp_path / "nothing"), "--port", "0", role="teacher"), ArtifactError)
    assert "--config" in str(refused(str(tmp_path), "--port", "0", "--config", "x.yaml", role="teacher"))
    assert "teacher.engine" in str(
        refused(str(student), "teacher.engine=other", "--port", "0", role="teacher")
    )
    long = refused(str(student), "teacher.reply_tokens=999999", "--port", "0", role="teacher")
    assert "pass the teacher's limit" in str(long)
    open_run(small_config(tmp_path / "root", student))
    oracles = refused(f"{tmp_path}/root/small", "--port", "0", role="teacher")
    assert isinstance(oracles, ConfigError)
    assert "of kind oracle, which is no model in a folder" in str(oracles)


def test_a_teacher_is_served_under_the_digest_that_a_run_gives_it(student: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path / "root", student, teacher=local(student, urls=["http://a:1"]))
    _, plan = open_run(config)
    of_run = served_teacher(f"{tmp_path}/root/small", None, ["teacher.dtype=float32"])
    (tmp_path / "file.yaml").write_text("teacher: {kind: endpoint, base_url: 'http://h/v1', model: m}\n")
    short = ["teacher.prompt_tokens=256", "teacher.reply_tokens=16"]
    of_folder = served_teacher(str(student), str(tmp_path / "file.yaml"), short)
    assert isinstance(plan, Plan)
    assert of_run.digest == of_folder.digest == plan.teacher_inputs["teacher"].digest
    assert (of_run.section.dtype, of_folder.section.dtype) == ("float32", "bfloat16")
    server = of_run.start()
    assert (server.health.role, server.health.policy) == ("teacher", of_run.digest)
    assert (server.health.kind, server.health.dtype) == ("transformers", "float32")
    server.close()


def test_addresses_of_a_teacher_are_no_part_of_a_digest(student: Path) -> None:
    alone, over = (
        RunConfig.model_validate({"teacher": local(student, **changes)})
        for changes in ({}, {"urls": ["http://a:1"]})
    )
    assert isinstance(over.teacher, LocalSection)
    assert over.teacher.urls == ["http://a:1"]
    assert over.teacher_reads == alone.teacher_reads
    with pytest.raises(ConfigError, match="address") as error:
        apply_overrides(alone, ["teacher.urls=[host]"])
    assert "teacher.urls" in str(error.value)


@pytest.mark.parametrize("urls", ["[host]", "['http://a:1', 'http://a:1/']", "['ftp://a']", "['http://a b']"])
def test_addresses_that_are_none_are_refused(urls: str) -> None:
    with pytest.raises(ConfigError, match="address") as error:
        apply_overrides(RunConfig(), [f"engine.urls={urls}"])
    assert "engine.urls" in str(error.value)


def test_addresses_are_no_part_of_a_digest() -> None:
    config = apply_overrides(RunConfig(), ["engine.urls=['http://a:1']"])
    assert config.engine.urls == ["http://a:1"]
    assert config.engine.reads == RunConfig().engine.reads
