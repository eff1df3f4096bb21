"""An engine that ends while episodes are played: nothing of them is stored, and the same stage goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pivotopd.errors import ConfigError, EngineFault, NumericsError
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.checkpoint import Policy, load_policy, save_policy
from pivotopd.models.decoding import Decoding
from pivotopd.models.transformers_engine import TransformersEngine
from stages.runs import open_run
from stages.work import Source, Work
from tests.small_student import small_config
from tests.stages.conftest import StoredRun


def test_a_rollout_that_loses_its_engine_stores_nothing_and_is_played_again(
    finished: StoredRun, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = StoredRun(tmp_path / "root")
    open_run(small_config(run.root, student))
    before, landed = run.files(), []
    land = Decoding.land

    def ends_at_the_third_landing(self: Decoding) -> dict[int, Completion]:
        if len(landed) == 2:
            raise EngineFault("the engine has ended")
        landed.append(land(self))
        return landed[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Decoding, "land", ends_at_the_third_landing)
        with pytest.raises(EngineFault) as caught:
            run.run("rollout", 0)
    assert caught.value.exit_code == 10
    assert all(landed), "turns had been played"
    assert run.files() == before
    run.run("rollout", 0)
    again, wanted = run.artifact("rollout", 0).manifest, finished.artifact("rollout", 0).manifest
    assert again.content_digest == wanted.content_digest


def test_a_model_that_vllm_does_not_know_is_played_by_the_default_engine_where_that_may_stand_in(
    finished: StoredRun, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM is asked in place of vLLM: it is not needed for a model that it does not know."""
    monkeypatch.setattr("pivotopd.models.vllm_engine.check_vllm", lambda *, where: None)

    def knows_none(folder: str | Path, *, may_fall_back: bool = False) -> bool:
        if may_fall_back:
            return False
        raise ConfigError("vLLM does not know the model", where=str(folder))

    monkeypatch.setattr("pivotopd.models.vllm_engine.check_model", knows_none)
    run = StoredRun(tmp_path / "root")
    open_run(small_config(run.root, student, engine__kind="vllm"))
    before = run.files()
    with pytest.raises(ConfigError, match="does not know"):
        run.run("rollout", 0)
    assert run.files() == before
    fallen = StoredRun(tmp_path / "fallen")
    open_run(small_config(fallen.root, student, engine__kind="vllm", engine__fallback="transformers"))
    fallen.run("rollout", 0)
    found, wanted = fallen.artifact("rollout", 0).manifest, finished.artifact("rollout", 0).manifest
    assert found.content_digest == wanted.content_digest, "its draws are the default engine's"
    assert found.digest != wanted.digest, "what was asked for is part of the work's name"
    assert found.counts["model_loads"] == found.counts["engine_starts"] == 1


class Stale:
    """An engine beside the learner's model whose reload reports success and keeps the old weights."""

    def __init__(self, policy: Policy, digest: str) -> None:
        self._inner, self.policy, self.closed = TransformersEngine(policy, digest=digest), digest, False
        self.counts = Counts()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return self._inner.generate(requests, sampling)

    def reload(self, folder: Path, policy: str) -> None:
        self.policy = policy

    def close(self) -> None:
        self.closed = True


def test_an_engine_that_kept_the_old_weights_stops_the_run_and_is_ended(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, plan = open_run(small_config(tmp_path / "root", student))
    first, started = plan.policy(0), []
    moved = load_policy(student)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in moved.model.parameters():
            parameter.add_(0.1 * parameter.std() * torch.randn(parameter.shape, generator=draws))
    save_policy(moved, tmp_path / "moved")
    second = Source("", "another policy", str(tmp_path / "moved"))

    def starts(self: Work, source: Source) -> Stale:
        started.append(Stale(self.policy(source), source.digest))
        return started[-1]

    monkeypatch.setattr(Work, "_start_engine", starts)
    engine = work.engine(first)
    assert work.engine(first) is engine
    assert work.parity_metrics["rollout/parity_largest_nats"] < 1e-3
    with pytest.raises(NumericsError, match=r"nats apart, 0\.01 are allowed") as caught:
        work.engine(second)
    assert caught.value.exit_code == 7
    assert started[0].closed
    assert work.engine(second) is not engine, "a new one has the new weights"
    assert [one.closed for one in started] == [True, False]
    work.close()
    assert started[1].closed
