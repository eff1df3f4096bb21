"""The learner: its gradient against a naive one on one and two ranks, skipped steps, and an exact resume."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file
from torch import Tensor

import pivotopd.learner as learner_module
from pivotopd.errors import ArtifactError, ConfigError, NothingToTrainOn, NumericsError
from pivotopd.learner import Learner, TrainingRow
from pivotopd.learner_state import STATE_FILE
from pivotopd.models.batching import TokenBatch
from pivotopd.models.checkpoint import load_policy, weights_digest
from tests.conftest import ROOT
from tests.learner_cases import (
    CASES,
    MASKED,
    Case,
    Probe,
    flat,
    gradient_of,
    make_rows,
    off_policy,
    policy,
    section,
)

TOLERANCE = 1e-6
"""Of the gradient, against its own norm (about 1): float32 sums in another order."""


def run(*arguments: str, ranks: int = 1) -> None:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    command = [sys.executable, *launcher, "-m", "tests.learner_worker", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def naive_gradient(count: int) -> Tensor:
    """Autograd of the formula, row by row, through the whole matrix of logits."""
    model = policy().model
    rows = off_policy(make_rows(model))[:count]
    total = sum(int(row.mask.sum()) for row in rows)
    loss = torch.zeros(())
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        for place, token in enumerate(row.response_ids):
            if row.mask[place]:
                current = logprobs[len(row.prompt_ids) + place - 1, token]
                ratio = torch.exp(current - float(row.old_nats[place]))
                gain = float(row.advantage[place])
                surrogate = torch.minimum(ratio * gain, torch.clip(ratio, 0.8, 1.2) * gain)
                gap = float(row.reference_nats[place]) - current
                loss = loss + (-surrogate + 0.01 * (torch.exp(gap) - 1 - gap)) / total
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).norm() <= TOLERANCE * wanted.norm())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradient_is_the_naive_one_for_any_split(case: Case) -> None:
    wanted = naive_gradient(case.rows)
    assert wanted.norm() > 0.1
    assert close(gradient_of(case), wanted)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("budget", [25, 60, 10_000])
def test_equal_rows_are_computed_once_with_a_loss_each(
    packing: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens with other advantages, old log-probabilities and masks, as in one group."""
    made = policy()
    rows = off_policy(make_rows(made.model))
    again = [
        dataclasses.replace(
            row, advantage=-0.5 * row.advantage, old_nats=row.old_nats + 0.1, mask=np.roll(row.mask, 1)
        )
        for row in rows[2:7]
    ]
    rows += [*again, *rows[4:6]]
    config = section(mini_batch_rows=len(rows), micro_batch_tokens=budget, packing=packing)
    computed: list[int] = []
    batches = learner_module.micro_batches

    def watched(rows: Sequence[Any], *arguments: Any, **named: Any) -> list[TokenBatch]:
        computed.append(len(rows))
        return batches(rows, *arguments, **named)

    monkeypatch.setattr(learner_module, "micro_batches", watched)
    with Probe(made, config) as once:
        (found,) = once.update(rows, 0)
    monkeypatch.setattr(learner_module, "_kinds", lambda rows: [[row] for row in rows])
    with Probe(policy(), config) as apart:
        (wanted,) = apart.update(rows, 0)
    assert (computed[0], computed[2]) == (10, 16), "the row that is masked whole is in neither, twice"
    assert wanted.gradient_norm > 0.1
    assert close(once.gradients[0], apart.gradients[0])
    trained = [row for row in [*again, *rows[4:6]] if row.keep.any()]
    assert found.repeated_tokens == sum(len(row.prompt_ids) + len(row.response_ids) for row in trained)
    assert (found.tokens, found.rows, found.dropped_tokens) == (
        wanted.tokens, wanted.rows, wanted.dropped_tokens
    )  # fmt: skip
    for name in (
        "loss",
        "policy_loss",
        "kl_nats",
        "clip_fraction",
        "ratio_mean",
        "gradient_norm",
        "ratio_gap",
    ):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-5, abs=1e-6)
    assert wanted.clip_fraction > 0
    assert wanted.repeated_tokens == 0


def test_equal_rows_are_dealt_to_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    rows = make_rows(made.model)
    rows += [dataclasses.replace(row, advantage=row.advantage + 1) for row in rows[:5]]
    dealt: list[list[float]] = []
    with Learner(made, section()) as learner:
        monkeypatch.setattr(learner, "_world", 2)
        for rank in (0, 1):
            monkeypatch.setattr(learner, "_rank", rank)
            share = learner._share(learner_module._kinds(rows))
            held = [copy for copies in share.copies for copy in copies]
            assert held == list(range(len(share.advantage)))
            batched = sorted(row for batch in share.batches[: share.idle_from] for row in batch.rows)
            assert batched == list(range(len(share.copies)))
            dealt.append([one[0] for one in share.advantage])
            assert all(
                share.advantage[first][0] + 1 == pytest.approx(share.advantage[second][0])
                for first, second in (copies for copies in share.copies if len(copies) == 2)
            )
    assert sorted(dealt[0] + dealt[1]) == sorted(float(row.advantage[0]) for row in rows)
    assert min(map(len, dealt)) > 5


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gradients of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run("gradients", str(folder / "gradients.npz"), ranks=2)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_ranks_give_the_same_gradient(two_ranks: Path, case: Case) -> None:
    found = np.load(two_ranks / "gradients.npz")
    assert found["world"] == 2
    assert close(torch.from_numpy(found[case.name]), naive_gradient(case.rows))


def resumed(folder: Path, stage: int = 1, dtype: str = "float32") -> Tensor:
    """The weights one update after a saved state."""
    made = policy(dtype)
    rows = make_rows(made.model)
    with Learner(made, section(zero_stage=stage, dtype=dtype)) as learner:
        learner.load(folder)
        learner.update(rows, 2)
        learner.save(folder / "again")
    return flat(load_policy(folder / "again", dtype).model)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_number_of_ranks_takes_the_state_up(dtype: str, tmp_path: Path) -> None:
    made = policy(dtype)
    rows = make_rows(made.model)
    with Learner(made, section(zero_stage=1, dtype=dtype)) as learner:
        learner.update(rows, 1)
        learner.save(tmp_path / "one")
        learner.update(rows, 2)
    wanted = flat(made.model)
    # 1 -> 2 ranks, in ZeRO 3; and one update on 2 ranks, then 1
    run("resume", str(tmp_path / "one"), str(tmp_path / "two.npy"), "3", dtype, ranks=2)
    run("save", str(tmp_path / "two"), "3", dtype, ranks=2)
    # the gradients' sums differ by rounding, which AdamW's first steps make large only near zero
    step = (wanted - flat(policy(dtype).model)).norm()
    for found in (torch.from_numpy(np.load(tmp_path / "two.npy")), resumed(tmp_path / "two", dtype=dtype)):
        assert float((found - wanted).norm() / step) < (2e-3 if dtype == "float32" else 0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("saved", "loads"), [(1, 0), (0, 1), (2, 3), (3, 2), (3, 3)])
def test_another_stage_takes_the_state_up(saved: int, loads: int, dtype: str, tmp_path: Path) -> None:
    made = policy(dtype)
    rows = make_rows(made.model)
    with Learner(made, section(zero_stage=saved, dtype=dtype)) as learner:
        learner.update(rows, 1)
        before = learner.weights_digest()
        learner.save(tmp_path / "state")
        learner.update(rows, 2)
        learner.save(tmp_path / "undisturbed")
    assert weights_digest(tmp_path / "state") == before
    wanted = flat(load_policy(tmp_path / "undisturbed", dtype).model)
    found = resumed(tmp_path / "state", loads, dtype)
    if saved == loads:
        assert torch.equal(found, wanted)
    moved = (wanted - flat(policy(dtype).model)).norm()
    assert float((found - wanted).norm() / moved) < (1e-4 if dtype == "float32" else 0.05)


def test_a_damaged_state_and_one_of_another_model_are_refused(tmp_path: Path) -> None:
    with Learner(policy(), section()) as learner:
        learner.save(tmp_path)
    path = tmp_path / STATE_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with Learner(policy(), section()) as learner, pytest.raises(ArtifactError, match="does not fit"):
        learner.load(tmp_path)
    other = load_file_with(whole, path)
    with Learner(policy(), section()) as learner, pytest.raises(ArtifactError, match=other):
        learner.load(tmp_path)


def load_file_with(whole: bytes, path: Path) -> str:
    """Write the state with one weight too few; return that weight's name."""
    tensors = load_bytes(whole)
    name = sorted(tensors)[0]
    save_file({key: value for key, value in tensors.items() if key != name}, path, {"steps": "0"})
    return name


def test_padded_and_packed_give_one_gradient() -> None:
    """With and without recomputation too; and packed rows pad nothing."""
    found = []
    for packing, recompute in ((True, False), (True, True), (False, False)):
        made = policy()
        config = section(packing=packing, gradient_checkpointing=recompute)
        with Probe(made, config) as learner:
            (report,) = learner.update(off_policy(make_rows(made.model)), 0)
            found.append(learner.gradients[0])
        assert (report.padded_tokens == 0) is packing
    assert all(close(one, naive_gradient(11)) for one in found)


def test_a_memory_that_is_too_small_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    made = policy()
    rows = make_rows(made.model)
    monkeypatch.setattr(learner_module, "response_logprobs", full)
    with Learner(made, section()) as learner, pytest.raises(ConfigError, match=r"2\.00 GiB") as caught:
        learner.update(rows, 0)
    assert "update.micro_batch_tokens" in str(caught.value)
    assert "update.gradient_checkpointing" in str(caught.value)


def test_reports_count_every_row_and_token() -> None:
    made = policy()
    rows = make_rows(made.model)
    bad = rows[5].advantage.copy()
    bad[0] = np.nan
    rows[5] = dataclasses.replace(rows[5], advantage=bad)
    with Learner(made, section(mini_batch_rows=4)) as learner:
        reports = learner.update(rows, 3)
    assert [report.step for report in reports] == [0, 1, 2]
    assert [report.rows for report in reports] == [4, 4, 3]
    assert sum(report.recovery_rows for report in reports) == 4
    everything = sum(len(row.response_ids) for row in rows)
    dropped = len(rows[MASKED].response_ids) + 2
    assert sum(report.tokens for report in reports) == everything - dropped
    assert sum(report.dropped_tokens for report in reports) == dropped
    assert not any(report.skipped for report in reports)
    assert reports[0].ratio_gap < 1e-5  # log-prob parity before the first step
    assert reports[1].ratio_gap > 1e-4
    assert reports[0].loss == pytest.approx(reports[0].policy_loss + 0.01 * reports[0].kl_nats)


def test_order_comes_from_the_seed_and_mixes_recoveries() -> None:
    results = []
    for seed in (1, 1, 2):
        made = policy()
        with Learner(made, section(mini_batch_rows=4)) as learner:
            learner.update(make_rows(made.model), seed)
        results.append(flat(made.model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_mini_batch_without_tokens_moves_nothing() -> None:
    made = policy()
    rows = make_rows(made.model)
    with Learner(made, section(mini_batch_rows=1)) as learner:
        reports = learner.update([rows[0], rows[MASKED]], 0)
        before = flat(made.model)
        # the masked row alone, with momentum and weight decay in place
        again = learner._step(0, [rows[MASKED]])
        assert torch.equal(before, flat(made.model))
    assert sorted(report.skipped for report in reports) == [False, True]
    assert (again.skipped, again.tokens, again.gradient_norm) == (True, 0, 0.0)
    assert again.dropped_tokens == len(rows[MASKED].response_ids)


@pytest.mark.parametrize("kind", ["masked", "none", "nan"])
def test_nothing_to_train_on(kind: str) -> None:
    made = policy()
    rows = make_rows(made.model)
    before = flat(made.model)
    changed: list[TrainingRow] = {
        "masked": [dataclasses.replace(row, mask=np.zeros_like(row.mask)) for row in rows],
        "nan": [dataclasses.replace(row, old_nats=np.full_like(row.old_nats, np.nan)) for row in rows],
        "none": [],
    }[kind]
    with Learner(made, section()) as learner, pytest.raises(NothingToTrainOn):
        learner.update(changed, 0)
    assert torch.equal(before, flat(made.model))


class PoisonedGradient(torch.autograd.Function):
    """The identity, whose gradient is not a number."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bad_gradient_skips_the_step(stage: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, made = policy(dtype), policy(dtype)
    rows = make_rows(made.model)
    genuine = learner_module.response_logprobs

    def poisoned(model: torch.nn.Module, batch: TokenBatch, chunk_tokens: int | None) -> Tensor:
        return PoisonedGradient.apply(genuine(model, batch, chunk_tokens))  # type: ignore[arg-type,no-any-return]

    config = section(zero_stage=stage, dtype=dtype)
    with Learner(made, config) as learner:
        learner.update(rows, 1)
        before = learner.weights_digest()
        with monkeypatch.context() as patch:
            patch.setattr(learner_module, "response_logprobs", poisoned)
            report = learner._step(0, rows)
            assert (report.skipped, report.gradient_norm) == (True, float("inf"))
            with pytest.raises(NumericsError):
                learner.update(rows, 1)
        assert learner.weights_digest() == before
        learner.update(rows, 2)
        after = learner.weights_digest()
    # optimizer state untouched: the next step is that of a learner which never met the bad gradient
    with Learner(clean, config) as learner:
        learner.update(rows, 1)
        learner.update(rows, 2)
        assert learner.weights_digest() == after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "dtype"), [(0, "float32"), (1, "float32"), (2, "float32"), (1, "bfloat16"), (0, "bfloat16")]
)
def test_resume_in_a_new_process_is_exact(stage: int, dtype: str, tmp_path: Path) -> None:
    made = policy(dtype)
    rows = make_rows(made.model)
    with Learner(made, section(zero_stage=stage, dtype=dtype)) as learner:
        learner.update(rows, 1)
        learner.save(tmp_path / "checkpoint")
        assert weights_digest(tmp_path / "checkpoint") == weights_digest(made.model)
        learner.update(rows, 2)
    run("resume", str(tmp_path / "checkpoint"), str(tmp_path / "weights.npy"), str(stage), dtype)
    found = np.load(tmp_path / "weights.npy")
    assert np.array_equal(found, flat(made.model).numpy())


def test_missing_state_is_refused(tmp_path: Path) -> None:
    with Learner(policy(), section()) as learner, pytest.raises(ArtifactError, match="no optimizer state"):
        learner.load(tmp_path)


@pytest.mark.parametrize(
    ("stage", "dtype"), [(0, "float32"), (1, "float32"), (1, "bfloat16"), (0, "bfloat16")]
)
def test_a_loaded_state_leaves_the_configured_settings(stage: int, dtype: str, tmp_path: Path) -> None:
    made = policy(dtype)
    rows = make_rows(made.model)
    with Learner(made, section(zero_stage=stage, dtype=dtype)) as learner:
        learner.update(rows, 1)
        learner.save(tmp_path)
    changed = section(zero_stage=stage, dtype=dtype, learning_rate=0.02, weight_decay=0.0, gradient_clip=1e-9)
    with Learner(policy(dtype), changed) as learner:
        learner.load(tmp_path)
        optimizer = learner._engine.optimizer
        assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(0.02, 0.0)}
        assert getattr(optimizer, "clip_grad", 1e-9) == 1e-9


def test_a_rerun_with_another_learning_rate_moves_the_weights_that_far(tmp_path: Path) -> None:
    made = policy()
    rows = make_rows(made.model)
    with Learner(made, section(weight_decay=0)) as learner:
        learner.update(rows, 1)
        learner.save(tmp_path)
    before, moved = flat(made.model), []
    for rate in (1e-3, 1e-2):
        again = policy()
        with Learner(again, section(weight_decay=0, learning_rate=rate)) as learner:
            learner.load(tmp_path)
            learner.update(rows, 2)
        moved.append((flat(again.model) - before).norm())
    assert float(moved[1] / moved[0]) == pytest.approx(10, rel=1e-3)


def test_closed_learners_leave_no_memory_and_no_hooks() -> None:
    made = policy()
    rows = make_rows(made.model)
    engines = []
    for seed in range(3):
        with Learner(made, section()) as learner:
            learner.update(rows, seed)
            engines.append(weakref.ref(learner._engine))
    del learner
    gc.collect()
    assert sum(engine() is not None for engine in engines) == 0
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in made.model.modules())


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Learner(policy(), section()).close()  # the import asks the linker, hidden from a real stderr only
    capfd.readouterr()
    made = policy()
    with Learner(made, section()) as learner:
        learner.update(make_rows(made.model), 0)
        learner.save(tmp_path)
        learner.load(tmp_path)
    assert capfd.readouterr() == ("", "")
