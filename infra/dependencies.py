"""Print what the package depends on, a requirement a line: a layer of dependencies needs no code."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(extras: list[str], project: Path = PROJECT) -> list[str]:
    """Return the requirements of the package and of extras; KeyError names an extra that does not exist."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    optional = table["optional-dependencies"]
    return [*table["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(sys.argv[1:])) + "\n")
