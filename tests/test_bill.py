"""The bill by hand: sums of manifests, shares of padding, costs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pivotopd.bill import bills_of, sum_of
from pivotopd.ledger import Counts, manifest_counts
from pivotopd.manifest import Manifest, content_digest

ORDER = ("warm_start", "rollout", "update")


def manifest(stage: str, iteration: int | None, spent: Counts | None, **seconds: float) -> Manifest:
    counts, varying = manifest_counts({"rows": 1}, spent)
    return Manifest(
        stage=stage, digest="d", content_digest=content_digest((), (), counts, varying), run="r",
        iteration=iteration, created_at=datetime(2030, 1, 1, tzinfo=UTC), code="c", config={}, inputs={},
        counts=counts, varying=varying, seconds=seconds,
    )  # fmt: skip


PLAYED = Counts(
    prompts=2, prompt_tokens=20, cached_prompt_tokens=5, generated_tokens=8, idle_tokens=1, padded_tokens=3
)
LEARNED = Counts(
    scored_context_tokens=26, shared_context_tokens=6, scored_tokens=8, padded_tokens=4,
    training_input_tokens=30, training_padding_tokens=10, bytes_written=100,
)  # fmt: skip


def test_a_bill_adds_manifests_by_iteration_and_stage() -> None:
    made = [
        manifest("update", 0, LEARNED, learn=2.0, write=0.5),
        manifest("rollout", 1, PLAYED, play=4.0),
        manifest("rollout", 0, PLAYED, play=1.0),
        manifest("rollout", 0, PLAYED, play=1.5),
        manifest("warm_start", None, Counts(trained_tokens=9), imitate=3.0),
        manifest("report", 0, PLAYED),
    ]
    bills = bills_of(made, ORDER)
    assert [bill.iteration for bill in bills] == [None, 0, 1]
    assert list(bills[1].stages) == ["rollout", "update"]
    assert bills[1].stages["rollout"].counts == PLAYED + PLAYED, "what was done twice is paid for twice"
    assert (bills[1].total.artifacts, bills[1].total.counts) == (3, PLAYED + PLAYED + LEARNED)
    assert bills[1].total.seconds == {"play": 2.5, "learn": 2.0, "write": 0.5}
    whole = sum_of(bills, ORDER)
    assert whole.total.counts == sum((Counts.of(one.counts) for one in made[:-1]), Counts())
    assert whole.total.total_s == pytest.approx(12.0)
    assert list(whole.stages) == list(ORDER)


def test_shares_are_of_what_was_computed() -> None:
    rollout, update = manifest("rollout", 0, PLAYED), manifest("update", 0, LEARNED)
    (bill,) = bills_of([rollout, update], ORDER)
    # prefill 20 - 5, decoding 8 - 2, one idle position, padding 3
    assert bill.stages["rollout"].engine_positions == 15 + 6 + 1 + 3
    assert bill.stages["rollout"].engine_waste_share == pytest.approx(4 / 25)
    assert bill.stages["rollout"].training_padding_share is None, "nothing was trained"
    # scoring 26 - 6 + 8, padding 4
    assert bill.stages["update"].engine_waste_share == pytest.approx(4 / 32)
    assert bill.stages["update"].training_padding_share == pytest.approx(10 / 40)


def test_a_teacher_has_a_cost_where_prices_are_known() -> None:
    free, paid = manifest("rollout", 0, PLAYED), manifest("update", 0, Counts(teacher_cost_millionths=1_500))
    (bill,) = bills_of([free, paid], ORDER)
    assert bill.stages["rollout"].teacher_cost is None
    assert bill.total.teacher_cost == pytest.approx(0.0015)


def test_a_manifest_without_a_full_ledger_is_told() -> None:
    (bill,) = bills_of([manifest("rollout", 0, None), manifest("update", 0, LEARNED)], ORDER)
    assert bill.total.incomplete == 1
    assert bill.total.engine_waste_share is None
    assert bill.stages["update"].engine_waste_share is not None
