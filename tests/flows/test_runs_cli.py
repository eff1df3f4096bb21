"""``pivotopd runs``: what it prints, its exit codes, and a training whose root is a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.runs_cli import size
from pivotopd.artifacts import RunLayout, list_artifacts
from pivotopd.blobs import Blobs
from pivotopd.exits import run_command
from pivotopd.runs.verify import verify_run
from stages.plan import Plan
from stages.runs import find_run
from tests.flows.runs import train
from tests.runs.cases import digest_of, make_run
from tests.s3_server import KEY, SECRET, S3Server, use_server
from tests.small_student import small_config
from tests.stages.conftest import StoredRun, copy, finished

__all__ = ["copy", "finished"]


def said(*arguments: object, code: int = 0) -> list[str]:
    result = CliRunner().invoke(app, ["runs", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def code_of(*arguments: object) -> int:
    return run_command(lambda: app(["runs", *map(str, arguments)], standalone_mode=False))


def test_list_verify_copy_and_prune(tmp_path: Path) -> None:
    root, copied = tmp_path / "root", tmp_path / "copy"
    layout = make_run(str(root), 3)
    listed = said("list", root)
    assert any("run" in line and "checkpoints 3, evaluate 3" in line for line in listed)
    assert any("shared" in line and "warm_start 1" in line for line in listed)
    assert said("verify", f"{root}/run")[-1].startswith("artifacts: 16, files right: 36 (")
    assert said("copy", f"{root}/run", copied)[-1].startswith("run: 16 artifacts copied (36 files, ")
    assert said("copy", f"{root}/run", copied)[-1] == "run: 0 artifacts copied (0 files, 0 B), 16 were there"
    before = Blobs(str(root)).find("")
    dry = said("prune", f"{root}/run", "--iterations", 1, "--dry-run")
    assert Blobs(str(root)).find("") == before
    assert dry[-1].startswith("would remove 5 files, ")
    assert f"{layout.stage(1, 'update')}/{digest_of('run update 1')}: kept, a manifest in use names it" in dry
    done = said("prune", f"{root}/run", "--iterations", 1)
    assert done[-1] == dry[-1].replace("would remove", "removed")
    assert said("verify", f"{root}/run")[-1].endswith(", 5 files pruned, problems: 0")
    assert said("list", tmp_path / "empty") == [f"no runs under {tmp_path / 'empty'}"]


def test_damage_ends_with_its_code(tmp_path: Path) -> None:
    layout = make_run(str(tmp_path), 1)
    (part,) = (tmp_path / layout.stage(0, "label")).rglob("*.parquet")
    part.unlink()
    lines = said("verify", f"{tmp_path}/run", code=3)
    assert lines[0] == f"it is missing: {part}"
    assert lines[-1].endswith("problems: 1")


@pytest.mark.parametrize("command", ["verify", "copy", "prune"])
@pytest.mark.parametrize(("name", "code"), [("absent", 3), ("shared", 2)])
def test_what_is_no_run_is_refused(command: str, name: str, code: int, tmp_path: Path) -> None:
    more = {"copy": [str(tmp_path / "copy")], "prune": ["--iterations", "1"]}.get(command, [])
    assert code_of(command, f"{tmp_path}/{name}", *more) == code
    assert not list(tmp_path.iterdir())


def test_codes_of_a_bucket(
    s3_root: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("list", s3_root) == 0
    assert code_of("list", "s3://no-such-bucket/runs") == 74
    assert "there is no such bucket" in capsys.readouterr().err
    use_server(monkeypatch, s3_server.url, AWS_SECRET_ACCESS_KEY="another")
    assert code_of("list", s3_root) == 2
    assert "refuses the keys" in capsys.readouterr().err


def test_sizes() -> None:
    assert [size(one) for one in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


@pytest.mark.slow
def test_a_pruned_run_goes_on(copy: object) -> None:
    run: StoredRun = copy()  # type: ignore[operator]  # the fixture of tests/stages
    assert said("prune", run.uri, "--iterations", 1)[-1].startswith("removed ")
    assert not list((run.root / "small" / "iterations" / "0000" / "rollout").rglob("*.parquet"))
    config, layout = find_run(run.uri)
    config = config.model_copy(update={"iterations": 3})
    plan = Plan(config, layout)
    jobs = [plan.job(stage, at) for at in (0, 1) for stage in plan.stages()]
    assert all(layout.store.open_artifact(job.prefix, job.digest) for job in jobs)
    run.run("rollout", 2, "iterations=3", follow=True)
    assert layout.store.open_artifact(layout.stage(2, "update"), plan.job("update", 2).digest)


@pytest.mark.slow
def test_a_training_in_a_bucket(student: Path, s3_root: str, tmp_path: Path) -> None:
    config = small_config(s3_root, student, iterations=1, tracking__uri=f"sqlite:///{tmp_path}/m.db")
    done = train(config, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    layout = RunLayout(s3_root, "small")
    found = verify_run(layout)
    assert found.problems == ()
    assert found.files > 10
    here = RunLayout(str(tmp_path / "here"), "small")
    local = train(
        small_config(tmp_path / "here", student, iterations=1, tracking__enabled=False), tmp_path / "home"
    )
    assert local.returncode == 0, local.stderr
    contents = [
        {one.path: one.manifest.content_digest for one in list_artifacts(where.store, "small")}
        for where in (layout, here)
    ]
    assert contents[0] == contents[1]
    texts = [Blobs(s3_root).read(path) or b"" for path in Blobs(s3_root).find("")]
    texts += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [done.stdout.encode(), done.stderr.encode()]
    assert not any(secret.encode() in text for text in texts for secret in (KEY, SECRET))
