"""A pool answers as one engine does, whichever engine computed what, and whichever ended on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.errors import ArtifactError, EngineFault
from pivotopd.ledger import Counts
from pivotopd.models.base import ScoreRequest
from pivotopd.services.pool import EnginePool
from tests.services.seeded import REQUESTS, SAMPLING, Seeded, drawn


@pytest.mark.parametrize("calls", [1_000, 2, 0])
def test_results_do_not_depend_on_the_spread_or_on_a_death(calls: int) -> None:
    alone, mortal, other = Seeded(), Seeded(calls=calls), Seeded()
    pool = EnginePool({"m": mortal, "o": other}, in_flight=3)
    assert drawn(pool.generate(REQUESTS, SAMPLING)) == drawn(alone.generate(REQUESTS, SAMPLING))
    assert max(mortal.sizes + other.sizes) <= 3
    assert sum(mortal.sizes) == (10 if calls == 1_000 else 3 * calls)
    assert pool.counts == Counts(prompts=20)


def test_the_last_death_is_one_error() -> None:
    with pytest.raises(EngineFault, match="no policy engine is left"):
        EnginePool({"m": Seeded(calls=1), "n": Seeded(calls=2)}, 3).generate(REQUESTS, SAMPLING)


def test_scores_keep_their_order() -> None:
    rows = [ScoreRequest(list(range(n)), [1] * (n % 3)) for n in range(1, 8)]
    for got, row in zip(EnginePool({"a": Seeded(), "b": Seeded()}, 2).score(rows), rows, strict=True):
        assert got.tolist() == [-len(row.prompt_ids)] * len(row.response_ids)


def test_an_engine_that_cannot_reload_is_dropped_and_the_last_one_raises() -> None:
    bad, good = Seeded(loads=False), Seeded()
    pool = EnginePool({"bad": bad, "good": good}, 4)
    pool.reload(Path("next"), "b")
    pool.generate(REQUESTS, SAMPLING)
    assert (pool.policy, bad.sizes, sum(good.sizes)) == ("b", [], 20)
    good.loads = False
    with pytest.raises(ArtifactError):
        pool.reload(Path("next"), "c")
    pool.close()
    assert (bad.closed, good.closed) == (True, True)


def test_engines_of_different_policies_are_refused() -> None:
    with pytest.raises(EngineFault, match="one policy"):
        EnginePool({"a": Seeded("a"), "b": Seeded("b")}, 4)
