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
from pivotopd.services.server import PolicyServer
from stages.serving import served_policy
from tests.flows.runs import ROOT


def refused(*arguments: str) -> PivotError:
    done = CliRunner().invoke(app, ["serve", "policy", *arguments])
    assert isinstance(done.exception, PivotError), done.output
    return done.exception


def test_a_taken_port_is_refused(student: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        error = refused(str(student), "--port", port)
    assert error.exit_code == 2
    assert port in str(error)


def test_what_is_no_policy_is_refused(student: Path, tmp_path: Path) -> None:
    assert isinstance(refused(str(tmp_path / "nothing"), "--port", "0"), ArtifactError)
    assert "--iteration" in str(refused(str(student), "--port", "0", "--iteration", "2"))
    assert "--config" in str(refused(str(tmp_path), "--port", "0", "--config", "x.yaml"))
    assert "engine.kind" in str(refused(str(student), "engine.kind=other", "--port", "0"))


def test_a_model_is_served_under_the_digest_that_a_run_gives_it(student: Path) -> None:
    served = served_policy(str(student), None, str(ROOT / "configs" / "demo.yaml"), ["update.dtype=bfloat16"])
    server = served.start()
    assert isinstance(server, PolicyServer)
    assert (server.health.policy, server.health.kind) == (served.digest, "transformers")
    assert server.health.dtype == "bfloat16"
    server.close()


@pytest.mark.parametrize("urls", ["[host]", "['http://a:1', 'http://a:1/']", "['ftp://a']", "['http://a b']"])
def test_addresses_that_are_none_are_refused(urls: str) -> None:
    with pytest.raises(ConfigError, match="address") as error:
        apply_overrides(RunConfig(), [f"engine.urls={urls}"])
    assert "engine.urls" in str(error.value)


def test_addresses_are_no_part_of_a_digest() -> None:
    config = apply_overrides(RunConfig(), ["engine.urls=['http://a:1']"])
    assert config.engine.urls == ["http://a:1"]
    assert config.engine.reads == RunConfig().engine.reads
