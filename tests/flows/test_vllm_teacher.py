"""A real language model as teacher, over HTTP: it answers badly, the run goes on, counts are the server's.

The model is small (SmolLM2-135M-Instruct), so what it says is worth little; that it is asked, read, counted
and kept as it should be is what these tests hold.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import Artifact, Store, list_artifacts
from pivotopd.errors import TeacherError
from pivotopd.records import Chain, Label, Lesson
from pivotopd.teacher.replies import Unreadable, read_label_reply
from stages.metrics import metrics_of
from stages.runs import open_run
from tests.flows.runs import PATIENCE_S, finish, start, train
from tests.small_student import small_config
from tests.stages.conftest import StoredRun
from tests.vllm_server import MODEL_NAME, Said, VllmServer, living, vllm_serving

pytestmark = pytest.mark.slow(seconds=40)
KEY = "sk-asked-for-by-the-real-server"
EPISODES = 4
SMALL: dict[str, Any] = {
    "iterations": 1,
    "environment__max_turns": 8,
    "rollout__group_size": EPISODES // 2,
    "recovery__limit": 3,
    "update__idle_limit": 1,
}
"""Few and short episodes: reading takes the time. None need be won: an idle update is not the end."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with vllm_serving(tmp_path_factory.mktemp("vllm"), KEY) as one:
        yield one


@pytest.fixture(scope="module")
def server(started: VllmServer) -> VllmServer:
    """The server, ready; a test that names ``played`` first lets it start while the episodes are played."""
    started.wait()
    return started


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)


@pytest.fixture(scope="module")
def played(started: VllmServer, student: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A run with episodes and the oracle's labels of them."""
    run = StoredRun(tmp_path_factory.mktemp("played") / "root")
    open_run(small_config(run.root, student, **SMALL))
    for stage in ("rollout", "label"):
        run.run(stage, 0)
    return run


def section(server: VllmServer, cache: Path, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "endpoint", "base_url": server.url, "model": MODEL_NAME, "api_key_variable": "TEACHER_KEY",
        "temperature": 0, "reply_tokens": 160, "max_candidates": 1, "retries": 1,
        "cache": str(cache), **changes,
    }  # fmt: skip


def stored(cache: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(cache.rglob("*.json"))]


def ledger(*artifacts: Artifact) -> Said:
    counts = [one.manifest.counts for one in artifacts]
    names = ("calls", "prompt_tokens", "reply_tokens")
    return Said(*(sum(one[f"teacher_{name}"] for one in counts) for name in names))


def readable(text: str) -> bool:
    try:
        return bool(read_label_reply(text))
    except Unreadable:
        return False


def check_labels(artifact: Artifact) -> int:
    """Check the stored labels against the stored counts; return how many episodes were read."""
    lessons, labels, counts = artifact.rows(Lesson), artifact.rows(Label), artifact.manifest.counts
    assert len(lessons) == len({one.episode for one in lessons}) == counts["episodes"] == EPISODES
    unread = [one for one in lessons if one.unread is not None]
    assert counts["unread"] == counts["teacher_episodes_unread"] == len(unread)
    assert metrics_of(artifact)["label/unread_share"] == len(unread) / EPISODES
    for one in lessons:
        assert one.raw_reply is not None, "the server answered every request"
        assert readable(one.raw_reply) == (one.unread is None)
        assert one.unread is None or one.unread.startswith("the reply ")
    again = counts["teacher_replies_unreadable"] - len(unread)
    assert again >= len(unread), "each of them was asked for once more"
    assert counts["teacher_calls"] + counts["teacher_cached"] == EPISODES + again
    assert counts["teacher_failed"] == 0
    assert {one.episode for one in labels} <= {one.episode for one in lessons if one.unread is None}
    unresolved = sum(one.gold_action is None for one in labels)
    assert counts["teacher_actions_unresolved"] >= unresolved, "those beyond the most candidates too"
    assert metrics_of(artifact)["label/unresolved"] == unresolved
    return EPISODES - len(unread)


def test_real_replies_are_kept_and_counted_and_a_schema_makes_more_of_them_readable(
    played: StoredRun, server: VllmServer, tmp_path: Path
) -> None:
    read = {}
    for structured in ("off", "auto"):
        cache, before = tmp_path / structured, server.said()
        override = f"teacher={json.dumps(section(server, cache, structured=structured))}"
        played.run("label", 0, override)
        artifact = played.artifact("label", 0, override)
        read[structured] = check_labels(artifact)
        assert server.said() - before == ledger(artifact), "the ledger is the server's own count"
        replies = stored(cache)
        assert len(replies) == artifact.manifest.counts["teacher_calls"]
        assert {one["prompt_tokens"] > 0 for one in replies} == {True}
    complete = [json.loads(one["text"]) for one in replies if not one["cut"]]
    assert complete, "bounded lengths bring a weak model to the end"
    for one in complete:
        assert set(one) == {"episode_summary", "episode_lesson", "step_lessons"}
        assert len(one["step_lessons"]) <= 1
    assert read["auto"] > 0
    assert read["auto"] >= read["off"]


def test_a_real_model_answers_the_queries_of_recoveries(
    played: StoredRun, server: VllmServer, tmp_path: Path
) -> None:
    before = server.said()
    override = f"teacher={json.dumps(section(server, tmp_path, reply_tokens=32))}"
    played.run("recover", 0, override)
    artifact = played.artifact("recover", 0, override)
    counts, chains = artifact.manifest.counts, artifact.rows(Chain)
    assert counts["teacher_queries"] > 0
    assert server.said() - before == ledger(artifact)
    unnamed = counts["teacher_queries_unread"] + counts["teacher_actions_unresolved"]
    assert sum(one.stopped == "unresolved" for one in chains) == unnamed
    assert len(stored(tmp_path)) == counts["teacher_calls"] > 0


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        ("sk-wrong", {"temperature": 1}, "refuses: status 401"),
        (KEY, {"model": "another"}, "refuses: status 404"),
        (
            KEY,
            {"reply_tokens": 100_000},
            f"none of {EPISODES} requests to the teacher was answered.*status 400",
        ),
    ],
)
def test_what_a_real_server_refuses_ends_the_stage_with_its_reason(
    played: StoredRun,
    server: VllmServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setenv("TEACHER_KEY", key)
    before = server.said()
    with pytest.raises(TeacherError, match=message) as caught:
        played.run("label", 0, f"teacher={json.dumps(section(server, tmp_path, **changes))}")
    assert caught.value.exit_code == 5
    assert key not in str(caught.value)
    assert server.said() == before


def test_a_run_goes_on_after_its_server_died_and_asks_nothing_twice(
    server: VllmServer, student: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "replies"
    teacher = section(server, cache, structured="auto", reply_tokens=96, concurrency=2)
    config = small_config(tmp_path / "root", student, teacher=teacher, **SMALL)

    process = start(config, tmp_path / "home")
    deadline = time.monotonic() + PATIENCE_S
    while not stored_count(cache):
        assert process.poll() is None, finish(process).stderr
        assert time.monotonic() < deadline
        time.sleep(0.05)
    processes = server.processes()
    server.stop(signal.SIGKILL)
    assert len(processes) > 1, "its workers are processes of their own"
    assert not [one for one in processes if Path(f"/proc/{one}").exists() and one in living(processes[0])]
    died = finish(process)
    assert died.returncode == 5, died.stderr
    assert "nothing answers there" in died.stderr
    assert server.url in died.stderr
    assert "Traceback" not in died.stderr
    kept = stored_count(cache)
    assert not artifacts(tmp_path / "root", "label"), "half a stage is not published"

    server.start()
    server.wait()
    done = train(config, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    (label,), (recover,) = artifacts(tmp_path / "root", "label"), artifacts(tmp_path / "root", "recover")
    check_labels(label)
    assert label.manifest.counts["teacher_cached"] >= kept >= 1
    assert server.said() == ledger(label, recover)

    answered, lessons, labels = server.said(), label.rows(Lesson), label.rows(Label)
    shutil.rmtree(label.uri)
    shutil.rmtree(recover.uri)
    again = train(config, tmp_path / "home")
    assert again.returncode == 0, again.stderr
    (repeated,) = artifacts(tmp_path / "root", "label")
    assert (repeated.rows(Lesson), repeated.rows(Label)) == (lessons, labels)
    assert ledger(repeated) == Said(0, 0, 0)
    assert server.said() == answered
    assert all(KEY not in text for one in (died, done, again) for text in (one.stdout, one.stderr))
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def stored_count(cache: Path) -> int:
    return len(list(cache.rglob("*.json")))


def artifacts(root: Path, stage: str) -> list[Artifact]:
    return [one for one in list_artifacts(Store(str(root))) if one.manifest.stage == stage]
