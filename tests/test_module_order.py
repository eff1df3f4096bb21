"""Modules with the most slow seconds begin first, alone and in a run over several workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MODULES = {
    "test_a.py": "def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n",
    "test_b.py": "import pytest\npytestmark = pytest.mark.slow\ndef test_one(): pass\ndef test_two(): pass\n",
    "test_c.py": "import pytest\n@pytest.mark.slow(seconds=41)\ndef test_one(): pass\n",
    "test_d.py": "def test_one(): pass\n",
    "test_e.py": "import pytest\ndef test_one(): pass\n@pytest.mark.slow\ndef test_two(): pass\n",
}
CONFTEST = """
from tests.module_order import longest_modules_first

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long")

def pytest_collection_modifyitems(items):
    items[:] = longest_modules_first(items)
"""


def pytest_in(folder: Path, *options: str) -> list[str]:
    """Run the modules above in a process of its own; return its lines."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", f"--rootdir={folder}", "-p", "no:cacheprovider", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def modules(tests: list[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def test_the_longest_module_is_first_and_the_others_stay_as_they_were(tmp_path: Path) -> None:
    tests = [line for line in pytest_in(tmp_path, "--collect-only", "-q") if "::" in line]
    assert modules(tests) == ["test_c.py", "test_b.py", "test_e.py", "test_a.py", "test_d.py"]
    assert tests[3:5] == ["test_e.py::test_one", "test_e.py::test_two"]


def test_workers_begin_with_the_longest_modules(tmp_path: Path) -> None:
    """By itself ``--dist loadfile`` begins with the module of most tests, here the three quick ones."""
    makefile = (ROOT / "Makefile").read_text()
    [recipe] = [line for line in makefile.splitlines() if "--dist loadfile" in line]
    options = recipe.partition("$(TEST_WORKERS)")[2].replace("$(TEST_ARGS)", "").split()
    lines = pytest_in(tmp_path, "-v", "-n", "2", *options)
    ended = [
        line.split() for line in lines if line.startswith("[gw")
    ]  # [gw0] [ 10%] PASSED test_c.py::test_one
    first = {words[0]: words[-1] for words in reversed(ended)}
    assert set(modules(list(first.values()))) == {"test_c.py", "test_b.py"}, lines
