"""Labels of a teacher that is served: those of the same teacher in the stage's own process."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pivotopd.errors import EngineFault
from pivotopd.records import Lesson
from tests.policy_server import ServerProcess
from tests.stages.conftest import StoredRun

pytestmark = pytest.mark.slow
SHORT = {"reply_tokens": 24, "prompt_tokens": 4072, "dtype": "float32"}


def section(folder: Path, *urls: str, **changes: object) -> str:
    return "teacher=" + json.dumps({"kind": "local", "path": str(folder), "urls": urls} | SHORT | changes)


@pytest.fixture(scope="module")
def server(larger: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = ("update.micro_batch_tokens=1024", *(f"teacher.{key}={value}" for key, value in SHORT.items()))
    one = ServerProcess(str(larger), tmp_path_factory.mktemp("server"), settings, "teacher")
    try:
        one.wait()
        yield one
    finally:
        one.kill()


def test_a_served_teacher_gives_the_labels_of_one_in_process(
    copy: Callable[[], StoredRun], larger: Path, server: ServerProcess, tmp_path: Path
) -> None:
    here, there = copy(), StoredRun(tmp_path / "there")
    shutil.copytree(here.root, there.root)
    here.run("label", 0, section(larger))
    there.run("label", 0, section(larger, server.url, concurrency=2))
    # where the teacher runs names no work: both are found under one section
    theirs, ours = (run.artifact("label", 0, section(larger)) for run in (here, there))
    assert ours.digest == theirs.digest
    assert ours.manifest.content_digest == theirs.manifest.content_digest
    assert [one.sha256 for one in ours.manifest.parts] == [one.sha256 for one in theirs.manifest.parts]
    for name in ("teacher_calls", "teacher_prompt_tokens", "teacher_reply_tokens"):
        assert ours.manifest.counts[name] == theirs.manifest.counts[name] > 0
    for name in ("engine_starts", "model_loads"):
        assert (ours.manifest.counts[name], theirs.manifest.counts[name]) == (0, 1)
    assert len({one.raw_reply for one in ours.rows(Lesson)}) > 1, "replies differ by prompt"


def test_another_teacher_is_refused_and_nothing_is_published(
    copy: Callable[[], StoredRun], student: Path, server: ServerProcess
) -> None:
    run = copy()
    before = run.files()
    with pytest.raises(EngineFault, match=r"holds teacher .*, the run's is ") as error:
        run.run("label", 0, section(student, server.url))
    assert error.value.exit_code == 10
    assert error.value.where == server.url
    assert run.files() == before


def test_it_ends_when_it_is_asked_and_leaves_its_port(
    copy: Callable[[], StoredRun], larger: Path, server: ServerProcess
) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    assert server.process.stdout is not None
    assert server.process.stdout.read() == "ended\n"
    run = copy()
    before = run.files()
    with pytest.raises(EngineFault, match="the teacher server cannot be reached") as error:
        run.run("label", 0, section(larger, server.url))
    assert "pivotopd serve teacher" in str(error.value)
    assert run.files() == before
