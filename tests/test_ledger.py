"""The ledger's type: sums field by field, the way into a manifest, and what its content digest leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.ledger import FIELDS, Counts, manifest_counts
from pivotopd.manifest import content_digest

ROOT = Path(__file__).resolve().parents[1]
COUNTS = st.builds(
    Counts,
    **{name: st.integers(0, 9) for name in FIELDS if name != "teacher_cost_millionths"},
    teacher_cost_millionths=st.none() | st.integers(0, 9),
)


def test_sums_go_field_by_field() -> None:
    one = Counts(prompts=2, prompt_tokens=30, teacher_cost_millionths=7)
    two = Counts(prompts=3, env_steps=1)
    assert one + two == Counts(prompts=5, prompt_tokens=30, env_steps=1, teacher_cost_millionths=7)
    assert two + two == Counts(prompts=6, env_steps=2), "no price on either side: no cost"
    assert one + one - one == one


@given(COUNTS, COUNTS)
def test_a_difference_undoes_a_sum_and_a_list_loses_nothing(one: Counts, two: Counts) -> None:
    assert one + two == two + one
    known = one + Counts(teacher_cost_millionths=0)
    assert (known + two) - two == known
    assert Counts.of({"episodes": 3, **one.listed()}) == one


def test_a_manifest_has_every_count_and_names_those_that_vary() -> None:
    listed, varying = manifest_counts({"episodes": 4}, Counts(env_steps=9, padded_tokens=2))
    assert listed["episodes"] == 4
    assert (listed["env_steps"], listed["padded_tokens"], listed["scored_tokens"]) == (9, 2, 0)
    assert listed.keys() - {"episodes"} == FIELDS.keys() - {"teacher_cost_millionths"}
    assert set(varying) == {name for name in listed if name in FIELDS and FIELDS[name].varies}
    assert {"padded_tokens", "teacher_cached", "teacher_retries", "model_loads", "bytes_written"} <= {
        *varying
    }
    assert not {"env_steps", "prompts", "generated_tokens", "scored_tokens", "trained_tokens"} & {*varying}
    assert manifest_counts({"episodes": 4}, None) == ({"episodes": 4}, ())


def test_a_stage_s_own_count_cannot_take_a_name_of_the_ledger() -> None:
    with pytest.raises(ValueError, match="the ledger's: replays"):
        manifest_counts({"replays": 1}, None)


def test_only_counts_that_follow_from_the_work_are_in_the_content_digest() -> None:
    def digest(spent: Counts) -> str:
        return content_digest([], [], *manifest_counts({"episodes": 1}, spent))

    same = digest(Counts(prompts=5))
    for name, known in FIELDS.items():
        other = digest(Counts(prompts=5) + Counts(**{name: 1}))
        assert (other == same) == known.varies, name


def test_every_count_is_explained_in_the_documents() -> None:
    text = (ROOT / "docs" / "artifacts.md").read_text(encoding="utf-8")
    for name, known in FIELDS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert line == f"| `{name}` | {known.meaning} | {'varies' if known.varies else ''} |"
