"""What code made a result: a digest of a stage's own source, the commit, and package versions.

The code digest covers a stage's module and everything it imports inside ``pivotopd`` and ``stages``, also in
functions and by name in strings (registries), and the templates beside them. Comments, layout and docstrings
do not count. So editing a method changes the update's digest and leaves the rollout's alone. It is read
from the syntax tree, whose printed form belongs to a Python minor version: compare digests within one.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PACKAGES = ("pivotopd", "stages")
DATA_SUFFIXES = frozenset({".j2", ".txt", ".yaml", ".json"})
ROOT = Path(__file__).resolve().parent.parent
NEUTRAL = frozenset(
    {
        "pivotopd.artifacts",
        "pivotopd.blobs",
        "pivotopd.config",
        "pivotopd.config_files",
        "pivotopd.errors",
        "pivotopd.exits",
        "pivotopd.ledger",
        "pivotopd.manifest",
        "pivotopd.methods.sections",
        "pivotopd.object_store",
        "pivotopd.outbox",
        "pivotopd.progress",
        "pivotopd.provenance",
        "pivotopd.publish",
        "pivotopd.section",
        "pivotopd.tracking",
        "pivotopd.tracking_mlflow",
        "stages.command",
        "stages.diagnosis_plan",
        "stages.metrics",
        "stages.plan",
        "stages.runner",
        "stages.runs",
    }
)
"""Modules that move, name or report results and make none; configuration enters a digest by its values."""
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "deepspeed", "numpy", "pyarrow", "vllm", "textworld")


@lru_cache(maxsize=256)
def code_digest(module: str, root: Path = ROOT) -> str:
    """Return the digest (sha256, hex) of a module's code and of all it imports here.

    Computed once a process: what is edited while it runs is not what it runs.

    Args:
        module: Dotted name, such as ``stages.rollout``.
        root: Folder that holds the packages.

    Raises:
        ModuleNotFoundError: There is no such module below the root.
    """
    if _file_of(module, root) is None:
        raise ModuleNotFoundError(f"no module {module!r} below {root}", name=module)
    closure = code_closure(module, root)
    lines = [f"{name} {_parsed(name, root).digest}" for name in closure]
    folders = {file.parent for name in closure if (file := _file_of(name, root)) is not None}
    data = sorted({path for folder in folders for path in _data_files(folder)})
    lines += [f"{path.relative_to(root).as_posix()} {_sha256(path.read_bytes())}" for path in data]
    return _sha256("\n".join(lines).encode())


def code_closure(module: str, root: Path = ROOT) -> tuple[str, ...]:
    """Return the modules that a code digest covers, sorted."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name in NEUTRAL or _file_of(name, root) is None:
            continue
        seen.add(name)
        waiting.extend(_parsed(name, root).imports)
        waiting.extend(_parents(name))
    return tuple(sorted(seen))


def git_commit() -> str | None:
    """Return this source's commit, with ``+dirty`` where tracked files differ; None outside a checkout."""
    git = shutil.which("git")
    if git is None or _git(git, "ls-files", "--error-unmatch", "pivotopd/provenance.py") is None:
        return None  # installed, perhaps inside somebody else's checkout
    commit = _git(git, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(git, "status", "--porcelain", "--untracked-files=no")
    return commit + ("+dirty" if changes else "")


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that can move a number."""
    versions = {"python": platform.python_version()}
    for name in ("pivotopd", *DISTRIBUTIONS):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git(git: str, *arguments: str) -> str | None:
    command = [git, "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parents(module: str) -> Iterator[str]:
    """Yield the packages whose ``__init__`` runs before a module's."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _file_of(module: str, root: Path) -> Path | None:
    """Return a module's source file, or None where it is not a module of ours."""
    pieces = module.split(".")
    if pieces[0] not in PACKAGES or not all(piece.isidentifier() for piece in pieces):
        return None
    base = root.joinpath(*pieces)
    for file in (base / "__init__.py", base.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _data_files(folder: Path) -> Iterator[Path]:
    """Yield the templates and tables beside a module, and in subfolders that hold no code."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix in DATA_SUFFIXES:
            yield path
        elif path.is_dir() and not path.name.startswith((".", "__")) and not any(path.glob("*.py")):
            yield from _data_files(path)


@dataclass(frozen=True, slots=True)
class _Parsed:
    digest: str
    imports: tuple[str, ...]


@lru_cache(maxsize=1024)
def _parsed(module: str, root: Path) -> _Parsed:
    """Parse a module once: the digest of its code, and the modules of ours that it names."""
    file = _file_of(module, root)
    if file is None:
        raise ModuleNotFoundError(f"no module {module!r} below {root}", name=module)
    tree = _WithoutRemarks().visit(ast.parse(file.read_text(encoding="utf-8"), filename=str(file)))
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    finder = _Imports(package, root)
    finder.visit(tree)
    return _Parsed(_sha256(ast.dump(tree).encode()), tuple(sorted(finder.found)))


class _WithoutRemarks(ast.NodeTransformer):
    """Drops strings that stand alone: docstrings of modules, classes, functions and attributes."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)


class _Imports(ast.NodeVisitor):
    """Collects the modules of ours that a module names."""

    def __init__(self, package: str, root: Path) -> None:
        self.package, self.root = package, root
        self.found: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        """Leave out imports for the type checker: they do not run."""
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
        for child in node.orelse if name == "TYPE_CHECKING" else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            pieces = self.package.split(".")
            parent = ".".join(pieces[: len(pieces) - node.level + 1])
            base = f"{parent}.{base}" if base else parent
        self._add(base)
        for alias in node.names:
            self._add(f"{base}.{alias.name}")

    def visit_Constant(self, node: ast.Constant) -> None:
        """Take ``"pivotopd.methods.grpo"`` and ``"pivotopd.methods.grpo:Grpo"`` for an import."""
        if isinstance(node.value, str):
            self._add(node.value.partition(":")[0])

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Take ``f"pivotopd.methods.{name}"`` for an import of every module of that package."""
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.endswith("."):
            package = first.value[:-1]
            file = _file_of(package, self.root)
            if file is not None and file.name == "__init__.py":
                self.found.update(f"{package}.{path.stem}" for path in file.parent.glob("[!_]*.py"))
        self.generic_visit(node)

    def _add(self, name: str) -> None:
        if _file_of(name, self.root) is not None:
            self.found.add(name)
