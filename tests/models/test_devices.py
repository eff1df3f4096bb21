"""A memory that is too small: wherever it is met, one error says what did not fit and which setting helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from pivotopd.config import UpdateSection
from pivotopd.errors import ConfigError
from pivotopd.learner import Learner
from pivotopd.models.base import Request, Sampling, ScoreRequest
from pivotopd.models.checkpoint import Policy, save_policy
from pivotopd.models.devices import put_on_device
from pivotopd.models.transformers_engine import TransformersEngine
from tests.models.conftest import small_policy

SAMPLING = Sampling(temperature=1.0, max_tokens=4)
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


def full(*_: object, **__: object) -> NoReturn:
    raise torch.OutOfMemoryError(FULL + "\nGPU 0 has a total capacity of 139 GiB.")


def generate(policy: Policy, _: Path) -> None:
    TransformersEngine(policy).generate([Request([3, 4], 0)], SAMPLING)


def fly(policy: Policy, _: Path) -> None:
    flight = TransformersEngine(policy).begin(SAMPLING)
    flight.send({0: Request([3, 4], 0)})
    flight.land()


def score(policy: Policy, _: Path) -> None:
    TransformersEngine(policy).score([ScoreRequest([3], [4])])


def score_distributions(policy: Policy, _: Path) -> None:
    TransformersEngine(policy).score_distributions([ScoreRequest([3], [4])], 2)


def load(policy: Policy, _: Path) -> None:
    put_on_device(policy.model)


def reload(policy: Policy, folder: Path) -> None:
    save_policy(policy, folder)
    TransformersEngine(policy).reload(folder, "next")


def start_learner(policy: Policy, _: Path) -> None:
    Learner(policy, UpdateSection())


def in_passes(patch: pytest.MonkeyPatch, policy: Policy) -> None:
    patch.setattr(policy.model.base_model, "forward", full)


def in_moves(patch: pytest.MonkeyPatch, policy: Policy) -> None:
    patch.setattr(type(policy.model), "to", full)


def in_deepspeed(patch: pytest.MonkeyPatch, _: Policy) -> None:
    import deepspeed

    patch.setattr(deepspeed, "initialize", full)


@pytest.mark.parametrize(
    ("step", "fills", "setting"),
    [
        (generate, in_passes, "rollout.batch_episodes"),
        (fly, in_passes, "rollout.batch_episodes"),
        (score, in_passes, "update.micro_batch_tokens"),
        (score_distributions, in_passes, "update.micro_batch_tokens"),
        (load, in_moves, "update.dtype=bfloat16"),
        (reload, in_moves, "update.dtype=bfloat16"),
        (start_learner, in_deepspeed, "update.zero_stage"),
    ],
)
def test_a_memory_that_is_too_small_names_a_setting(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: Callable[[Policy, Path], None],
    fills: Callable[[pytest.MonkeyPatch, Policy], None],
    setting: str,
) -> None:
    policy: Any = small_policy()
    fills(monkeypatch, policy)
    with pytest.raises(ConfigError) as caught:
        step(policy, tmp_path / "model")
    error = caught.value
    assert FULL in error.what
    assert "139" not in error.what  # one line of what CUDA says
    assert setting in str(error.mend)
