"""Servers of a run are looked for before its first job, and only where something is left that needs them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flows.train import jobs_of
from pivotopd.errors import EngineFault
from stages.runs import open_run
from stages.servers import check_servers
from stages.work import Job, Work
from tests.services.seeded import Seeded
from tests.services.test_server import running
from tests.small_student import small_config

NOBODY = "http://127.0.0.1:1"
DONE = object()


def checked(root: Path, student: Path, done: Callable[[Job], bool], **changes: object) -> None:
    work, plan = open_run(small_config(root, student, **changes))
    with closing(work), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Work, "made", lambda _, job: DONE if done(job) else None)
        check_servers(work, jobs_of(plan))


def teacher(student: Path, *urls: str) -> dict[str, object]:
    settings = {"prompt_tokens": 256, "reply_tokens": 16, "dtype": "float32"}
    return {"kind": "local", "path": str(student), "urls": list(urls), **settings}


def nothing(job: Job) -> bool:
    return False


def test_a_policy_server_out_of_reach_is_told_before_anything_is_done(student: Path, tmp_path: Path) -> None:
    with running(Seeded("a")) as url, pytest.raises(EngineFault, match="cannot be reached") as error:
        checked(tmp_path, student, nothing, engine={"urls": [url, NOBODY]})
    assert error.value.where == NOBODY


def test_a_policy_server_that_would_draw_otherwise_is_told(student: Path, tmp_path: Path) -> None:
    with running(Seeded("a")) as url, pytest.raises(EngineFault, match="generates with transformers"):
        checked(tmp_path, student, nothing, engine={"kind": "vllm", "urls": [url]})


def test_another_teacher_is_told(student: Path, tmp_path: Path) -> None:
    with running(Seeded("a"), "teacher") as url, pytest.raises(EngineFault, match="holds teacher a"):
        checked(tmp_path, student, nothing, teacher=teacher(student, url))


def test_servers_that_answer_are_left_as_they_are(student: Path, tmp_path: Path) -> None:
    engine = Seeded("a")
    with running(engine) as url:
        checked(tmp_path, student, nothing, engine={"urls": [url]})
    assert (engine.policy, engine.calls) == ("a", Seeded("a").calls)


@pytest.mark.parametrize("left", [(), ("update",), ("warm_start", "update")])
def test_what_needs_no_server_asks_none(left: tuple[str, ...], student: Path, tmp_path: Path) -> None:
    servers = {"engine": {"urls": [NOBODY]}, "teacher": teacher(student, NOBODY)}
    checked(tmp_path, student, lambda job: job.stage not in left, **servers)


@pytest.mark.parametrize(("left", "asked"), [("label", "teacher"), ("evaluate", "engine")])
def test_each_stage_asks_for_its_own(left: str, asked: str, student: Path, tmp_path: Path) -> None:
    servers = {"engine": {"urls": [NOBODY]}, "teacher": teacher(student, "http://127.0.0.1:2")}
    with pytest.raises(EngineFault) as error:
        checked(tmp_path, student, lambda job: job.stage != left, **servers)
    assert error.value.where == (NOBODY if asked == "engine" else "http://127.0.0.1:2")
