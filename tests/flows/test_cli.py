"""The command line starts light, ends with documented codes, and its manual is in step with the code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flows import doctor_cli
from flows.cli import app
from flows.doctor_cli import line_of
from flows.manual_cli import configuration_page, tables_page
from pivotopd.config_files import describe_keys, load_config
from pivotopd.doctor.finding import Finding
from pivotopd.errors import (
    ArtifactError,
    ConfigError,
    EnvironmentFault,
    NothingToTrainOn,
    NumericsError,
    PivotError,
    Preempted,
    StorageError,
    TeacherError,
)
from pivotopd.exits import EXIT_CODES, READER_GONE, run_command

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "deepspeed", "prefect", "mlflow", "pyarrow", "pandas", "pydantic", "numpy")


def run_python(code: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=check
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


# ---------------------------------------------------------------------- light start


def test_the_command_line_imports_nothing_heavy() -> None:
    done = run_python(f"import sys, flows.cli; print([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == "[]"


def test_help_of_every_command_imports_nothing_heavy() -> None:
    done = run_python(
        f"""
        import sys
        from typer.testing import CliRunner
        from flows.cli import app
        names = [[]] + [[c.name or c.callback.__name__.replace('_', '-')] for c in app.registered_commands]
        names += [[g.name] for g in app.registered_groups]
        for name in names:
            assert CliRunner().invoke(app, [*name, "--help"]).exit_code == 0, name
        loaded = [m for m in {HEAVY} if m in sys.modules and m != "pydantic"]  # Typer's own help loads that
        print(len(names), loaded)
        """
    )
    count, loaded = done.stdout.strip().split(" ", 1)
    assert int(count) > 4
    assert loaded == "[]"


# ---------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError, 2),
        (ArtifactError, 3),
        (EnvironmentFault, 4),
        (TeacherError, 5),
        (NothingToTrainOn, 6),
        (NumericsError, 7),
        (StorageError, 74),
        (Preempted, 75),
    ],
)
def test_an_error_becomes_its_three_parts_and_its_code(
    error: type[PivotError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        raise error("it broke", where="games.parquet", mend="write it again")

    assert run_command(body) == code
    assert code in EXIT_CODES
    shown = capsys.readouterr()
    assert shown.err == "error: it broke\n  where: games.parquet\n  mend:  write it again\n"
    assert shown.out == ""


def test_every_error_class_has_a_documented_code() -> None:
    pending, classes = [PivotError], []
    while pending:
        classes.append(pending.pop())
        pending += classes[-1].__subclasses__()
    assert {error.exit_code for error in classes} <= set(EXIT_CODES)


def test_a_full_disk_under_the_output_is_a_storage_error() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "tables"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == StorageError.exit_code
    assert done.stderr.startswith("error: the disk is full")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_closed_standard_stream_is_no_defect(stream: str) -> None:
    number = ["stdin", "stdout", "stderr"].index(stream)
    shell = ["/bin/sh", "-c", f'exec "$@" {number}>&-', "sh"]
    done = subprocess.run(
        [*shell, sys.executable, "-m", "flows.cli", "games", "play", "--generate", "1"],
        cwd=ROOT,
        input="" if stream != "stdin" else None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["tables", "methods", "config"])
def test_a_reader_that_has_gone_ends_a_command_quietly(name: str) -> None:
    """As under ``| head``: with typer's own output and with rich's, longer and shorter than a buffer."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", name],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, "")


def test_a_defect_keeps_its_traceback() -> None:
    done = run_python("from pivotopd.exits import run_command\nrun_command(lambda: 1 // 0)", check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_the_bodys_code_is_returned_and_none_is_success() -> None:
    assert run_command(lambda: 7) == 7
    assert run_command(lambda: None) == 0


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", 130)])
def test_signals_end_with_their_code(number: str, code: int) -> None:
    done = run_python(
        f"""
        import os, signal, sys, time
        from pivotopd.exits import run_command
        def body():
            os.kill(os.getpid(), signal.{number})
            time.sleep(60)
        sys.exit(run_command(body))
        """,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_configuration_error_ends_the_process_with_2_and_without_traceback() -> None:
    done = command("config", "recovery.dept=1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "recovery.dept" in done.stderr
    assert "depth" in done.stderr
    assert "mend:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_option_and_a_missing_file_end_with_2() -> None:
    assert command("config", "--nonsense").returncode == 2
    missing = command("config", "no-such.yaml")
    assert missing.returncode == 2
    assert "no-such.yaml" in missing.stderr


# ---------------------------------------------------------------------- config, tables


def test_config_prints_what_a_file_and_overrides_resolve_to(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["config", str(ROOT / "configs/demo.yaml"), "recovery.depth=3"])
    assert shown.exit_code == 0
    again = tmp_path / "resolved.yaml"
    again.write_text(shown.stdout, encoding="utf-8")
    assert yaml.safe_load(shown.stdout)["recovery"]["depth"] == 3
    assert load_config(again) == load_config(ROOT / "configs/demo.yaml", ["recovery.depth=3"])


def test_a_dry_run_prints_one_line_a_job_and_the_settings_when_asked(tmp_path: Path) -> None:
    arguments = ["train", str(ROOT / "configs/demo.yaml"), "--dry-run", f"root={tmp_path}", "iterations=1"]
    plain = CliRunner().invoke(app, arguments)
    assert plain.exit_code == 0, plain.output
    lines = plain.stdout.splitlines()
    names = [line.partition("would run")[0].strip() for line in lines]
    assert names == [
        "warm_start", "evaluate 0000", "rollout 0000", "label 0000", "recover 0000", "update 0000",
        "evaluate 0001",
    ]  # fmt: skip
    asked = CliRunner().invoke(app, [*arguments, "--settings"])
    assert asked.stdout.endswith(plain.stdout)
    settings = yaml.safe_load(asked.stdout.removesuffix(plain.stdout))
    assert settings["iterations"] == 1
    assert settings["recovery"]["depth"] == 1
    assert not any(tmp_path.iterdir())


def test_config_takes_overrides_without_a_file() -> None:
    shown = CliRunner().invoke(app, ["config", "method=grpo"])
    assert yaml.safe_load(shown.stdout)["method"]["name"] == "grpo"


def test_config_without_arguments_shows_every_key() -> None:
    shown = CliRunner().invoke(app, ["config"]).stdout
    for key, _, _ in describe_keys():
        assert key in shown


def test_every_key_has_a_meaning() -> None:
    assert [key for key, _, meaning in describe_keys() if not meaning] == []


@pytest.mark.parametrize(
    ("page", "text"),
    [("configuration.md", configuration_page), ("tables.md", tables_page)],
)
def test_the_generated_pages_are_in_step(page: str, text: object) -> None:
    assert callable(text)
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == text(), "run `make docs`"


def test_tables_shows_every_table() -> None:
    shown = CliRunner().invoke(app, ["tables"]).stdout
    for table in ("episodes", "turns", "labels", "chains", "signals", "advantages", "updates"):
        assert f"{table} (version" in shown


def test_the_readme_lists_every_exit_code() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in readme


# ---------------------------------------------------------------------- doctor


def test_doctor_lines_say_how_to_mend_only_what_is_missing() -> None:
    assert line_of(Finding("g++", True, "12.2", "install it")) == "ok        g++: 12.2"
    missing = line_of(Finding("g++", False, "not found", "install it"))
    assert missing.startswith("missing   g++: not found\n")
    assert missing.endswith("mend: install it")
    assert line_of(Finding("games", False, "not set", required=False)).startswith("absent ")


def test_doctor_fails_only_for_what_a_run_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cli, "NEEDED", ("typer", "no_such_library"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 2
    assert "missing   no_such_library: ModuleNotFoundError" in shown.stdout
    assert "absent    official games" in shown.stdout
    assert shown.stdout.strip().endswith("not ready: no_such_library")


@pytest.mark.parametrize("spec", [object(), None])
def test_doctor_names_the_build_of_vllm_or_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, spec: object | None
) -> None:
    monkeypatch.setattr(doctor_cli, "NEEDED", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"vllm": ["typer"]})
    shown = CliRunner().invoke(app, ["doctor"])
    found = f"ok        vLLM: typer {importlib.metadata.version('typer')}\n"
    assert (found in shown.stdout) == (spec is not None)
    assert ("absent    vLLM: ModuleNotFoundError: no module vllm\n" in shown.stdout) == (spec is None)
    assert ("infra/vllm_cpu.sh" in shown.stdout) == (spec is None)
    assert shown.exit_code == 0


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ("engine.kind=vllm", "vLLM"),
        ("update.lora={rank: 4}", "peft"),
        ("engine={kind: vllm, urls: ['http://127.0.0.1:9']}", "policy server http://127.0.0.1:9"),
    ],
)
def test_doctor_misses_what_settings_ask_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, missing: str
) -> None:
    monkeypatch.setattr(doctor_cli, "NEEDED", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shown = CliRunner().invoke(app, ["doctor", f"root={tmp_path}", setting])
    assert shown.exit_code == 2
    assert missing in shown.stdout.splitlines()[-1].removeprefix("not ready: ").split(", ")


def test_doctor_misses_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_cli, "NEEDED", ())
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 2
    assert "missing   g++: FileNotFoundError" in shown.stdout
