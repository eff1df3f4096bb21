"""Stages, loop, scoring and loss name no method: one is a file, a section and a line in the registry."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pivotopd.methods.registry import ENTRIES
from tests.conftest import ROOT

METHODS = ROOT / "pivotopd" / "methods"
SHARED = {"pivotopd.methods.base", "pivotopd.methods.registry"}
"""All that others may import of the methods."""
NAMES = {entry.name for entry in ENTRIES.values()}
CLASSES = {name for one in ENTRIES.values() for name in (one.kind.__name__, one.section.__name__)}
CORE = ("ablations", "depth", "larger_teacher", "learner", "learner_setup", "objective", "recovery",
        "reverse_recovery", "rollout", "scoring", "skills", "training_rows")  # fmt: skip
FILES = [
    *sorted((ROOT / "stages").glob("*.py")),
    *(ROOT / "flows" / f"{name}.py" for name in ("train", "tasks", "evaluate", "console", "inspect_cli")),
    *(ROOT / "pivotopd" / f"{name}.py" for name in CORE),
]


def named(tree: ast.AST) -> set[str]:
    """Return the methods that code names: as a text, a class, or a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            found.add(str(node.value))
        elif isinstance(node, ast.Name | ast.Attribute | ast.alias):
            word = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}[type(node)]
            found |= {getattr(node, word)} & CLASSES
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {module} if module.startswith("pivotopd.methods") and module not in SHARED else set()
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_method_is_named(file: Path) -> None:
    assert named(ast.parse(file.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize(
    "code", ["x == 'grpo'", "Sod(1)", "sections.OpsdMethod()", "from pivotopd.methods.rlsd import f"]
)
def test_the_search_finds_one(code: str) -> None:
    assert len(named(ast.parse(code))) == 1


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_a_method_s_file_is_short_and_begins_with_formula_and_source(entry: object) -> None:
    assert isinstance(entry, type(next(iter(ENTRIES.values()))))
    text = (METHODS / f"{entry.name}.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) <= 130
    assert entry.formula.index("A_l ") < entry.formula.index("Source: ")
    assert entry.formula.count("arXiv") or "ZJU-REAL" in entry.formula
