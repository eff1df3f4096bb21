from __future__ import annotations

import pytest

from pivotopd.errors import first_line


@pytest.mark.parametrize(
    ("text", "line"), [("one\ntwo", "one"), ("\n  late\n", "late"), ("", "ValueError"), ("\n", "ValueError")]
)
def test_the_first_line_of_an_error_is_never_empty(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


def test_a_long_line_is_cut() -> None:
    assert first_line(ValueError("ab" * 9), 5) == "ababa"
