"""Refuse Python files above 500 lines: a module holds one idea."""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 500


def too_long(paths: list[str]) -> list[str]:
    """Return a message for each file above the limit."""
    lengths = {path: len(Path(path).read_text(encoding="utf-8").splitlines()) for path in paths}
    return [
        f"{path}: {lines} lines, at most {LIMIT}: which idea can move out?"
        for path, lines in lengths.items()
        if lines > LIMIT
    ]


if __name__ == "__main__":
    sys.exit("\n".join(too_long(sys.argv[1:])) or 0)
