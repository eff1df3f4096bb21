"""The other side of the update's comparison: TRL's GRPOTrainer, its loss and backward pass on given rows.

Nothing is generated: rows are padded as the trainer pads a generation batch (prompts on the left,
completions on the right, to the longest of all), cut into micro-batches, and given to the trainer's own
``_compute_loss``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pivotopd.training_rows import TrainingRow

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Padded:
    """The trainer's inputs of one micro-batch.

    Attributes:
        inputs: What ``_compute_loss`` reads.
        positions: Positions that it computes, padding included.
    """

    inputs: dict[str, Tensor]
    positions: int


def padded(rows: Sequence[TrainingRow], micro_rows: int, *, trimmed: bool = False) -> list[Padded]:
    """Return the rows as the trainer's micro-batches.

    Args:
        rows: All rows of the step.
        micro_rows: Rows of a micro-batch.
        trimmed: Sort by length and pad each micro-batch to its own longest row; the trainer does not.
    """
    longest_prompt = max(len(row.prompt_ids) for row in rows)
    longest = max(len(row.response_ids) for row in rows)
    items = torch.tensor(float(sum(int(row.keep.sum()) for row in rows)))
    order = list(rows)
    if trimmed:
        order.sort(key=lambda row: len(row.prompt_ids) + len(row.response_ids))
    found = []
    for start in range(0, len(order), micro_rows):
        part = order[start : start + micro_rows]
        if trimmed:
            longest_prompt = max(len(row.prompt_ids) for row in part)
            longest = max(len(row.response_ids) for row in part)
        inputs = {
            "prompt_ids": _pad([row.prompt_ids for row in part], longest_prompt, left=True),
            "prompt_mask": _pad([[1] * len(row.prompt_ids) for row in part], longest_prompt, left=True),
            "completion_ids": _pad([row.response_ids for row in part], longest),
            "completion_mask": _pad([row.keep.astype(np.int64).tolist() for row in part], longest),
            "old_per_token_logps": _pad([row.old_nats for row in part], longest, dtype=torch.float32),
            "ref_per_token_logps": _pad([row.reference_nats for row in part], longest, dtype=torch.float32),
            "advantages": torch.tensor([float(row.advantage[0]) for row in part]),
            "num_items_in_batch": items,
        }
        found.append(Padded(inputs, len(part) * (longest_prompt + longest)))
    return found


def _pad(
    values: Sequence[Any], longest: int, *, left: bool = False, dtype: torch.dtype = torch.int64
) -> Tensor:
    out = torch.zeros((len(values), longest), dtype=dtype)
    for index, value in enumerate(values):
        part = torch.as_tensor(np.asarray(value), dtype=dtype)
        if left:
            out[index, longest - len(value) :] = part
        else:
            out[index, : len(value)] = part
    return out


class TrlSide:
    """A GRPOTrainer whose loss and backward pass are called by hand.

    Args:
        model: The model; the trainer patches its forward.
        tokenizer: Any tokenizer; nothing is tokenised.
        folder: Where the trainer may write.
        micro_rows: Rows of a micro-batch.
        clip_ratio: eps.
        kl_coefficient: beta.
        learning_rate: Of AdamW.
        gradient_clip: Largest gradient norm.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        *,
        micro_rows: int,
        clip_ratio: float,
        kl_coefficient: float,
        learning_rate: float,
        gradient_clip: float,
    ) -> None:
        from datasets import Dataset  # type: ignore[import-not-found]  # noqa: PLC0415 - optional
        from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # noqa: PLC0415 - optional

        on_gpu = next(model.parameters()).device.type == "cuda"
        with _environment_kept():
            settings = GRPOConfig(
                str(folder),
                per_device_train_batch_size=max(2, micro_rows),
                gradient_accumulation_steps=1,
                steps_per_generation=1,
                num_generations=2,
                gradient_checkpointing=False,
                beta=0.0,  # set below: the reference is given, so no second model is loaded
                epsilon=clip_ratio,
                loss_type="dapo",
                temperature=1.0,
                bf16=False,
                use_cpu=not on_gpu,
                report_to=[],
                disable_tqdm=True,
            )
            data = Dataset.from_list([{"prompt": "a"}] * max(2, micro_rows))
            self.trainer: Any = GRPOTrainer(
                model, reward_funcs=_no_reward, args=settings, train_dataset=data, processing_class=tokenizer
            )
        self.trainer.beta = kl_coefficient
        self.trainer.current_gradient_accumulation_steps = 1
        self.model, self._clip = model, gradient_clip
        self.model.train()
        self._optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.01)

    def step(self, batches: Sequence[Padded]) -> float:
        """Run forward and backward of all micro-batches and one optimizer step; return the loss."""
        device = next(self.model.parameters()).device
        total = 0.0
        for batch in batches:
            inputs = {name: value.to(device) for name, value in batch.inputs.items()}
            loss = self.trainer._compute_loss(self.model, inputs)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for values in self.trainer._metrics.values():
            values.clear()
        return total


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Take back what accelerate sets: a launcher's variables, which later processes would obey."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _no_reward(completions: Sequence[object], **_: object) -> list[float]:
    return [0.0] * len(completions)
