"""A whole run with a teacher behind a key, as a person starts it: the key is in nothing that it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.artifacts import Store, list_artifacts
from tests.chat_server import Response, serving
from tests.flows.runs import train
from tests.small_student import small_config
from tests.stages.test_bad_teacher import Server

KEY = "sk-Not.To-Be_Found_0123456789"


@pytest.mark.slow
def test_a_key_stands_in_no_file_log_table_or_database(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the server repeats it in an error to one request in two."""
    monkeypatch.setenv("TEACHER_KEY", KEY)
    with serving(Server(Response({"error": {"message": f"Incorrect API key {KEY}"}}, 400))) as server:
        config = small_config(
            tmp_path / "root",
            student,
            iterations=1,
            update__idle_limit=1,
            teacher={
                "kind": "endpoint",
                "base_url": server.url,
                "model": "m",
                "api_key_variable": "TEACHER_KEY",
            },
        )
        done = train(config, tmp_path / "home")
        assert done.returncode == 0, done.stderr
        assert set(server.keys) == {f"Bearer {KEY}"}
    label = next(
        one for one in list_artifacts(Store(str(tmp_path / "root"))) if one.manifest.stage == "label"
    )
    assert label.manifest.counts["unread"] > 0
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"mlflow.db", "config.yaml", "prefect.db"} <= {path.name for path in left}
    assert not [path for path in left if KEY.encode() in path.read_bytes()]
    assert KEY not in done.stdout + done.stderr
    told = [path.name for path in left if b"TEACHER_KEY" in path.read_bytes()]
    assert "config.yaml" in told, "the search finds what is there"
