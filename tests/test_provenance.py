"""A code digest moves with code that the stage runs, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd import provenance
from pivotopd.provenance import code_closure, code_digest, package_versions

FILES = {
    "pivotopd/__init__.py": '"""Top."""\n',
    "pivotopd/records.py": "WIDTH = 3\n",
    "pivotopd/artifacts.py": "STORE = 1\n",
    "pivotopd/rollout.py": "from pivotopd.records import WIDTH\n\n\ndef play():\n    return WIDTH\n",
    "pivotopd/methods/__init__.py": 'METHODS = {"grpo": "pivotopd.methods.grpo:Grpo"}\n',
    "pivotopd/methods/grpo.py": "class Grpo:\n    clip = 0.2\n",
    "pivotopd/wording/__init__.py": "",
    "pivotopd/wording/prompt.txt": "You are in a room.",
    "pivotopd/wording/parts/hint.j2": "{{ hint }}",
    "stages/__init__.py": "",
    "stages/rollout.py": (
        "from typing import TYPE_CHECKING\n"
        "from pivotopd import artifacts, rollout\n"
        "if TYPE_CHECKING:\n    from pivotopd.methods import grpo\n\n\n"
        "def main():\n    import pivotopd.wording\n    return rollout.play()\n"
    ),
    "stages/update.py": "def main():\n    from pivotopd.methods import METHODS\n    return METHODS\n",
    "stages/plugins.py": "import importlib\n\n\ndef load(name):\n"
    '    return importlib.import_module(f"pivotopd.methods.{name}")\n',
    "stages/relative.py": "from . import update\nfrom .plugins import load\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def digest(root: Path, module: str) -> str:
    provenance.code_digest.cache_clear()
    provenance._parsed.cache_clear()
    return code_digest(module, root)


def edit(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


def test_closure_follows_lazy_and_named_imports(tree: Path) -> None:
    assert code_closure("stages.rollout", tree) == (
        "pivotopd",
        "pivotopd.records",
        "pivotopd.rollout",
        "pivotopd.wording",
        "stages",
        "stages.rollout",
    )
    assert "pivotopd.methods.grpo" in code_closure("stages.update", tree)
    assert "pivotopd.methods.grpo" in code_closure("stages.plugins", tree)
    assert {"stages.update", "stages.plugins"} <= set(code_closure("stages.relative", tree))


def test_editing_a_method_moves_update_and_not_rollout(tree: Path) -> None:
    rollout, update = digest(tree, "stages.rollout"), digest(tree, "stages.update")
    edit(tree, "pivotopd/methods/grpo.py", "0.2", "0.3")
    assert digest(tree, "stages.update") != update
    assert digest(tree, "stages.rollout") == rollout


def test_editing_what_is_imported_moves_the_digest(tree: Path) -> None:
    before = digest(tree, "stages.rollout")
    edit(tree, "pivotopd/records.py", "3", "4")
    assert digest(tree, "stages.rollout") != before


@pytest.mark.parametrize("name", ["pivotopd/wording/prompt.txt", "pivotopd/wording/parts/hint.j2"])
def test_editing_a_template_moves_the_digest(tree: Path, name: str) -> None:
    before = digest(tree, "stages.rollout")
    update = digest(tree, "stages.update")
    (tree / name).write_text("changed")
    assert digest(tree, "stages.rollout") != before
    assert digest(tree, "stages.update") == update


def test_comments_docstrings_layout_and_the_store_do_not_count(tree: Path) -> None:
    before = digest(tree, "stages.rollout")
    (tree / "pivotopd/rollout.py").write_text(
        '"""Plays."""\n\nfrom pivotopd.records import WIDTH  # a comment\n\n'
        'def play():\n    """Play once."""\n    return   WIDTH\n'
    )
    edit(tree, "pivotopd/artifacts.py", "1", "2")
    assert digest(tree, "stages.rollout") == before


def test_the_place_of_the_source_does_not_count(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "copy"
    tree.rename(other)
    again = digest(other, "stages.rollout")
    other.rename(tree)
    assert digest(tree, "stages.rollout") == again


def test_an_unknown_module_is_refused(tree: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"stages\.nothing"):
        digest(tree, "stages.nothing")


def test_the_real_tables_are_covered_and_the_store_is_not() -> None:
    assert "pivotopd.records" in code_closure("pivotopd.records")
    assert code_closure("pivotopd.artifacts") == ()


def test_every_neutral_module_exists() -> None:
    for name in provenance.NEUTRAL:
        assert provenance._file_of(name, provenance.ROOT), name


def test_versions_name_what_moves_numbers() -> None:
    versions = package_versions()
    assert {"python", "torch", "numpy", "pyarrow"} <= set(versions)


def test_commit_is_none_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.git_commit() is None


def test_commit_tells_clean_from_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    import subprocess

    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    (tmp_path / "pivotopd").mkdir()
    (tmp_path / "pivotopd/provenance.py").write_text("x = 1\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "--no-verify", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    clean = provenance.git_commit()
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "pivotopd/provenance.py").write_text("x = 2\n")
    assert provenance.git_commit() == clean + "+dirty"
