"""The PPO update on DeepSpeed: rows in, weights moved, one report an optimizer step.

Every rank is given all rows and takes a share of each mini-batch. The loss is normalised by the trained
tokens of the whole mini-batch, so neither the micro-batches nor the number of ranks change the gradient;
DeepSpeed averages gradients over ranks, hence the factor world size on the loss. A step without a trained
token, or with a gradient that is not finite, leaves the weights and the optimizer as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pivotopd import distributed
from pivotopd.config import UpdateSection
from pivotopd.errors import NothingToTrainOn, NumericsError
from pivotopd.learner_setup import deepspeed_settings, recompute_layers, scored_by
from pivotopd.learner_state import STATE_FILE, load_state, save_state, whole_weights
from pivotopd.methods.base import AuxiliaryLoss, Target
from pivotopd.models.attention import use_grouped_steps
from pivotopd.models.base import Nats
from pivotopd.models.batching import TokenBatch, micro_batches
from pivotopd.models.checkpoint import DTYPES, Policy, check_finite, save_policy, weights_digest
from pivotopd.models.devices import memory_for
from pivotopd.models.logprobs import response_logprobs, response_values, sampled
from pivotopd.models.lora import add_adapters, merged_weights
from pivotopd.models.repeats import repeats_of, tokens_of
from pivotopd.objective import LossParts, ppo_loss
from pivotopd.seeds import rng_of
from pivotopd.target_loss import BatchTargets, batch_targets
from pivotopd.training_rows import StepReport, TrainingRow

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OPTIMIZER_NEEDS: Final = (
    "raise update.ranks with update.zero_stage at 2 or 3 (one rank a GPU), set update.lora, or lower "
    "engine.gpu_memory_share where vLLM generates"
)
"""What makes weights, gradients and optimizer state smaller on a GPU."""

__all__ = ["Learner", "StepReport", "TrainingRow"]


@dataclass(frozen=True, slots=True)
class _Share:
    """One rank's part of a mini-batch; batches from ``idle_from`` on belong to no row of the share.

    Batches hold each kind of row once, all else is by row: ``copies`` has the rows of each kind.
    """

    batches: list[TokenBatch]
    idle_from: int
    copies: list[list[int]]
    old: list[list[float]]
    reference: list[list[float]]
    advantage: list[list[float]]
    keep: list[list[bool]]
    teacher: list[list[float]]  # empty without an auxiliary loss
    targets: list[tuple[Target, ...]]


class _Scored(torch.nn.Module):
    """What DeepSpeed wraps: its hooks stay on this shell and die with it, not on the policy's own model."""

    def __init__(self, model: PreTrainedModel, chunk_tokens: int | None) -> None:
        super().__init__()
        self.model, self._chunk_tokens = model, chunk_tokens

    def forward(self, batch: TokenBatch, targets: BatchTargets) -> tuple[Tensor, Tensor | None]:
        """Return the (N,) log-probabilities of a batch's response tokens, and their (N,) loss to targets."""
        if not targets.groups:
            return response_logprobs(self.model, batch, self._chunk_tokens), None

        def of_chunk(logprobs: Tensor, where: slice) -> tuple[Tensor, ...]:
            return sampled(logprobs, batch, where), targets.loss(logprobs, where)

        current, beside = response_values(self.model, batch, of_chunk, self._chunk_tokens)
        return current, beside


class Learner:
    """A policy under DeepSpeed ZeRO with AdamW. Close it, or use it in a ``with``, to give memory back.

    Args:
        policy: The policy to train; its model is trained in place.
        config: The update's section.
        chunk_tokens: Tokens whose logits exist at once; None fits them to the vocabulary.
        auxiliary: The method's loss beside PPO, or None.

    Raises:
        ConfigError: DeepSpeed does not start, or the accelerator's memory is too small.
    """

    def __init__(
        self,
        policy: Policy,
        config: UpdateSection,
        *,
        chunk_tokens: int | None = None,
        auxiliary: AuxiliaryLoss | None = None,
    ) -> None:
        self._policy, self._config, self._auxiliary = policy, config, auxiliary
        deepspeed = distributed.join()
        if config.lora is not None:
            add_adapters(policy.model, config.lora)
        use_grouped_steps(policy.model)  # the attention that keeps packed rows apart
        # eval: a dropout layer would make the first ratio differ from 1
        model = _Scored(policy.model.to(DTYPES[config.dtype]), chunk_tokens).eval()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, config.learning_rate, betas=(0.9, 0.999), weight_decay=config.weight_decay
        )
        settings = deepspeed_settings(config, sum(weight.numel() for weight in trained))
        with distributed.quiet(), memory_for("the optimizer", OPTIMIZER_NEEDS):
            self._engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        if config.zero_stage == 3:
            scored_by(deepspeed, model, policy.model)
        if config.gradient_checkpointing:
            recompute_layers(policy.model)
        self._world, self._rank = dist.get_world_size(), dist.get_rank()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take DeepSpeed's hooks and buffers off the model.

        The policy keeps its trained weights, unless ZeRO 3 has spread them over the ranks.
        """
        if self._engine is not None:
            self._engine.destroy()
            self._engine = None

    def update(self, rows: Sequence[TrainingRow], seed: int) -> list[StepReport]:
        """Run one epoch over the rows, in an order drawn from the seed, recoveries among rollouts.

        Args:
            rows: All rows of the update, the same on every rank; none is left out.
            seed: Seed of the order.

        Returns:
            One report an optimizer step. The last mini-batch may be smaller.

        Raises:
            NothingToTrainOn: No token is left to train on; the weights are untouched.
            NumericsError: Every step was skipped; the weights are untouched.
            ConfigError: The accelerator's memory is too small.
        """
        if not any(row.keep.any() for row in rows):
            raise NothingToTrainOn(
                f"none of {len(rows)} rows has a token that can train: all are cut or not finite",
                mend="raise rollout.response_tokens, or check the weights of the checkpoint",
            )
        order = rng_of("order of update rows", seed).permutation(len(rows)).tolist()
        size = self._config.mini_batch_rows
        starts = range(0, len(rows), size)
        with self._memory("the update"):
            reports = [
                self._step(step, [rows[index] for index in order[start : start + size]])
                for step, start in enumerate(starts)
            ]
        if all(report.skipped for report in reports):
            raise NumericsError(
                f"no gradient of {len(reports)} optimizer steps was finite",
                mend="lower update.learning_rate, or check the weights of the checkpoint",
            )
        return reports

    def train(
        self, rows: Sequence[TrainingRow], seed: int, auxiliary: AuxiliaryLoss | None
    ) -> list[StepReport]:
        """Do what :meth:`update` does, with this loss beside PPO from here on."""
        self._auxiliary = auxiliary
        return self.update(rows, seed)

    def _memory(self, what: str) -> AbstractContextManager[None]:
        """Name the settings of a micro-batch where one does not fit the memory."""
        also = "" if self._config.gradient_checkpointing else ", or set update.gradient_checkpointing=true"
        return memory_for(
            what,
            f"lower update.micro_batch_tokens{also}; the result depends on neither",
            f"update.micro_batch_tokens={self._config.micro_batch_tokens}",
        )

    def _step(self, step: int, rows: Sequence[TrainingRow]) -> StepReport:
        """Train on one mini-batch."""
        trained = [row for row in rows if row.keep.any()]
        denominator = sum(int(row.keep.sum()) for row in trained)
        parts: list[LossParts] = []
        padded, repeated, norm, skipped = 0, 0, 0.0, True
        if trained:
            kinds = _kinds(trained)
            repeated = sum((len(kind) - 1) * _tokens(kind[0]) for kind in kinds)
            share = self._share(kinds)
            for index, batch in enumerate(share.batches):
                # ZeRO's collectives want the same number of passes from every rank: idle ones count nothing.
                self._engine.set_gradient_accumulation_boundary(index == len(share.batches) - 1)
                parts.append(self._backward(batch, share, denominator, idle=index >= share.idle_from))
            padded = sum(batch.padded_tokens for batch in share.batches[: share.idle_from])
            norm, skipped = self._apply()
        return replace(self._report(step, rows, parts, padded, norm, skipped), repeated_tokens=repeated)

    def _share(self, kinds: Sequence[list[TrainingRow]]) -> _Share:
        """This rank's part of a mini-batch: rows dealt by length, back and forth, for nearly equal work.

        Rows of the same tokens stay together.
        """
        by_length = sorted(kinds, key=lambda kind: _tokens(kind[0]), reverse=True)
        turn = np.arange(len(kinds)) % (2 * self._world)
        owner = np.minimum(turn, 2 * self._world - 1 - turn)
        dealt = [kind for kind, rank in zip(by_length, owner, strict=True) if rank == self._rank]
        mine = [row for kind in dealt for row in kind]
        ends = np.cumsum([len(kind) for kind in dealt], dtype=int).tolist()
        batches = self._batches([kind[0] for kind in dealt])
        most = int(distributed.largest([len(batches)], self._engine.device)[0])
        idle = self._batches([by_length[-1][0]])
        return _Share(
            batches=[*batches, *idle * (most - len(batches))],
            idle_from=len(batches),
            copies=[list(range(end - len(kind), end)) for kind, end in zip(dealt, ends, strict=True)],
            old=[row.old_nats.tolist() for row in mine],
            reference=[row.reference_nats.tolist() for row in mine],
            advantage=[row.advantage.tolist() for row in mine],
            keep=[row.keep.tolist() for row in mine],
            teacher=[_or_nan(row.teacher_nats, len(row.response_ids)) for row in mine]
            if self._auxiliary is not None
            else [],
            targets=[row.targets for row in mine],
        )

    def _batches(self, rows: Sequence[TrainingRow]) -> list[TokenBatch]:
        return micro_batches(rows, self._config.micro_batch_tokens, packed=self._config.packing)

    def _backward(self, batch: TokenBatch, share: _Share, denominator: int, *, idle: bool) -> LossParts:
        """Add one micro-batch to the gradient; equal rows have one forward pass and a loss each."""
        batch = batch.to(self._engine.device)
        targets = BatchTargets(())
        if not idle:
            targets = batch_targets(batch, [share.targets[copies[0]] for copies in share.copies])
        current, target_loss = self._engine(batch, targets)
        if not idle:
            batch, tokens = batch.spread(share.copies)
            current = current[tokens]
            target_loss = None if target_loss is None else target_loss[tokens]
        zeros = torch.zeros_like(current, requires_grad=False)
        parts = ppo_loss(
            current,
            zeros if idle else batch.join(share.old),
            zeros if idle else batch.join(share.reference),
            zeros if idle else batch.join(share.advantage),
            zeros.bool() if idle else batch.join(share.keep, torch.bool),
            denominator,
            self._config.clip_ratio,
            self._config.kl_coefficient,
            self._auxiliary,
            None if idle or self._auxiliary is None else batch.join(share.teacher),
            target_loss=target_loss,
        )
        self._engine.backward(parts.loss * self._world, scale_wrt_gas=False)
        return parts

    def _apply(self) -> tuple[float, bool]:
        """Step the optimizer if the gradient is finite; return its norm and whether it was skipped."""
        engine = self._engine
        if not engine.zero_optimization() and self._config.dtype == "float32":
            # Without ZeRO, DeepSpeed in float32 neither reports the norm nor refuses a bad one.
            gradients = [weight.grad for weight in engine.module.parameters() if weight.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
            if not np.isfinite(norm):
                engine.zero_grad()
                return float("inf"), True
            engine.step()
            return norm, False
        engine.step()
        if not engine.was_step_applied():
            return float("inf"), True
        return float(engine.get_global_grad_norm()), False

    def _report(
        self,
        step: int,
        rows: Sequence[TrainingRow],
        parts: Sequence[LossParts],
        padded: int,
        norm: float,
        skipped: bool,
    ) -> StepReport:
        """Add the ranks' parts up."""
        sums = [
            sum(part.policy_loss for part in parts),
            sum(part.auxiliary_loss for part in parts),
            sum(part.kl_nats for part in parts),
            sum(part.clipped for part in parts),
            sum(part.ratio_sum for part in parts),
            sum(part.tokens for part in parts),
            padded,
        ]
        device = self._engine.device
        policy_loss, beside, kl, clipped, ratios, tokens, padded_total = distributed.total(sums, device)
        gap = distributed.largest([max((part.ratio_gap for part in parts), default=0.0)], device)[0]
        return StepReport(
            step=step,
            loss=policy_loss + self._config.kl_coefficient * kl + beside,
            policy_loss=policy_loss,
            auxiliary_loss=beside,
            kl_nats=kl,
            clip_fraction=clipped / max(tokens, 1),
            ratio_mean=ratios / tokens if tokens else 1.0,
            gradient_norm=norm,
            rows=len(rows),
            recovery_rows=sum(row.is_recovery for row in rows),
            tokens=int(tokens),
            padded_tokens=int(padded_total),
            dropped_tokens=sum(len(row.response_ids) for row in rows) - int(tokens),
            skipped=skipped,
            ratio_gap=gap,
        )

    def weights_digest(self) -> str:
        """Return the digest of the policy's weights. All ranks take part."""
        with whole_weights(self._engine):
            return weights_digest(self._policy.model, self._weights())

    def check_finite(self, where: str, mend: str) -> None:
        """Refuse weights that are not finite. All ranks take part.

        Raises:
            NumericsError: Names the first such tensor.
        """
        with whole_weights(self._engine):
            check_finite(self._policy.model, where=where, mend=mend)

    def _weights(self) -> dict[str, Tensor] | None:
        """The policy's weights where its model has others: adapters."""
        return None if self._config.lora is None else merged_weights(self._policy.model)

    def save(self, folder: Path) -> None:
        """Write the policy in Hugging Face form, and the optimizer's state beside it. All ranks take part.

        The folder is not atomic: give a temporary one and publish it after this returns.

        Raises:
            StorageError: The folder cannot be written.
        """
        with whole_weights(self._engine):
            if self._rank == 0:
                save_policy(self._policy, folder, self._weights())
        save_state(self._engine, folder / STATE_FILE, writes=self._rank == 0)
        dist.barrier()

    def load(self, folder: Path) -> None:
        """Take weights and optimizer state from a saved folder, bit by bit; settings stay those configured.

        With LoRA the frozen weights are those that this learner began with: the initial policy's.

        The number of ranks and the ZeRO stage need not be those that saved it.

        Raises:
            ArtifactError: The folder has no state, a damaged one, or one of another model.
            ConfigError: The accelerator's memory is too small.
        """
        with memory_for("the optimizer", OPTIMIZER_NEEDS):
            load_state(self._engine, folder / STATE_FILE)


def _kinds(rows: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
    """Return rows of the same tokens together; one with targets of its own stays alone."""
    keys = [(tokens_of(row), index if row.targets else None) for index, row in enumerate(rows)]
    return [[rows[index] for index in group] for group in repeats_of(keys).groups]


def _tokens(row: TrainingRow) -> int:
    return len(row.prompt_ids) + len(row.response_ids)


def _or_nan(values: Nats | None, size: int) -> list[float]:
    """Return values, or as many that are not a number."""
    return [float("nan")] * size if values is None else [float(value) for value in values]
