"""Our update against TRL's GRPOTrainer: same ragged batch, same weights, equal loss first, tokens a second.

One step each: forward, backward, gradient clipping, AdamW; no generation, no scoring. Tokens are real ones,
prompts and responses without padding. TRL computes the entropy of every token as well, which cannot be
switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.batch import Lengths, ragged_rows, random_model
from benchmarks.beside import trl_folder
from benchmarks.iteration import CACHE
from benchmarks.ratios import Block as AbBlock
from benchmarks.ratios import Cost, passes, speedup, versions, worse
from benchmarks.ratios import measure as timed
from benchmarks.result import Count, Measure, Skipped
from benchmarks.trl_side import Padded, TrlSide, padded
from pivotopd.config import UpdateSection
from pivotopd.learner import Learner, StepReport, TrainingRow
from pivotopd.models.batching import micro_batches
from pivotopd.models.checkpoint import make_policy
from pivotopd.models.logprobs import response_logprobs
from pivotopd.models.tiny import build_tokenizer

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

GATE, AIM = 1.8, 2.5
TOLERANCE = 1e-4
MICRO_ROWS = 8
VOCABULARY = 2048
OURS = "ours"


@dataclass(frozen=True, slots=True)
class Case:
    """A batch, a model and the update's settings."""

    rows: int
    lengths: Lengths
    layers: int = 4
    hidden: int = 128

    def model(self) -> Qwen3ForCausalLM:
        """Return the model; always the same weights."""
        return random_model(
            layers=self.layers,
            hidden=self.hidden,
            heads=4,
            kv_heads=2,
            intermediate=3 * self.hidden,
            vocabulary=VOCABULARY,
        )

    @property
    def section(self) -> UpdateSection:
        """One optimizer step over all rows."""
        return UpdateSection(learning_rate=1e-6, mini_batch_rows=self.rows, micro_batch_tokens=2048)


def training_rows(case: Case) -> list[TrainingRow]:
    """Return the batch as the learner takes it: old and initial policy a little off the current one."""
    rows = ragged_rows(case.rows, case.lengths, VOCABULARY)
    model = case.model()
    nats: dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]] = {}
    with torch.inference_mode():
        for batch in micro_batches(rows, 4096):
            values = batch.split(response_logprobs(model, batch))
            nats |= {index: one.numpy() for index, one in zip(batch.rows, values, strict=True)}
    return [
        TrainingRow(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            advantage=np.full(len(row.response_ids), row.advantage, np.float32),
            old_nats=nats[index] + row.noise,
            reference_nats=nats[index] - row.noise,
            mask=np.ones(len(row.response_ids), np.bool_),
            is_recovery=False,
        )
        for index, row in enumerate(rows)
    ]


def measure(*, quick: bool = False) -> list[Measure | Skipped]:
    """Return the ratios, or why there is none."""
    if trl_folder(CACHE) is None:
        reason = "TRL is not installed and cannot be: see benchmarks/requirements.txt"
        return [Skipped("update/trl", reason)]
    case = Case(8, Lengths().shortened(16), 2, 64) if quick else Case(256, Lengths().shortened(8))
    with TemporaryDirectory() as folder:
        return _measured(case, Path(folder), quick)


def _measured(case: Case, folder: Path, quick: bool) -> list[Measure | Skipped]:
    rows = training_rows(case)
    tokens = sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    tokenizer = build_tokenizer(["go to"])
    theirs = {
        "trl": padded(rows, MICRO_ROWS),
        "trl/trimmed": padded(rows, MICRO_ROWS, trimmed=True),
    }
    side = TrlSide(
        case.model(),
        tokenizer,
        folder,
        micro_rows=MICRO_ROWS,
        clip_ratio=case.section.clip_ratio,
        kl_coefficient=case.section.kl_coefficient,
        learning_rate=case.section.learning_rate,
        gradient_clip=case.section.gradient_clip,
    )
    reports: list[StepReport] = []
    with Learner(make_policy(case.model(), tokenizer), case.section) as learner:
        reports += learner.update(rows, 0)
        losses = {"ours": reports[0].loss, "trl": side.step(theirs["trl"])}
        check_losses(losses)
        arms: dict[str, Callable[[], Cost]] = {OURS: partial(timed, partial(_ours, learner, rows, tokens))}
        for name, batches in theirs.items():
            arms[name] = partial(timed, partial(_theirs, side, batches, tokens))
        blocks = passes(arms, OURS, 2 if quick else 7, warmup=0 if quick else 1)
    counts: dict[str, Count] = {
        "rows": len(rows),
        "tokens": tokens,
        "trained_tokens": reports[0].tokens,
        "our_positions": tokens + reports[0].padded_tokens,
        "our_loss": losses["ours"],
        "trl_loss": losses["trl"],
        "loss_gap": abs(losses["ours"] - losses["trl"]),
        "blocks": len(blocks),
        **{name: version for name, version in versions(["trl", "transformers"]).items() if name != "python"},
    }
    found: list[Measure | Skipped] = []
    labels = {
        "trl": f"update tokens/s against TRL's GRPOTrainer, {MICRO_ROWS} rows a micro-batch",
        "trl/trimmed": "the same with sorted rows and each micro-batch trimmed, which TRL does not do",
    }
    for name, label in labels.items():
        pairs = [AbBlock[Cost](block[OURS], block[name]) for block in blocks]
        wall, cpu = speedup(pairs), speedup(pairs, clock="cpu_s")
        judged = worse(wall, cpu)
        positions = sum(batch.positions for batch in theirs[name])
        mine = sum((pair.a for pair in pairs[1:]), pairs[0].a)
        other = sum((pair.b for pair in pairs[1:]), pairs[0].b)
        found.append(
            Measure(
                name=f"update/{name}",
                label=label,
                value=judged.median,
                low=judged.low,
                high=judged.high,
                gate=GATE if name == "trl" else None,
                aim=AIM if name == "trl" else None,
                clock="cpu and wall",
                counts=counts
                | {
                    "trl_positions": positions,
                    "position_ratio": round(positions / int(counts["our_positions"]), 3),
                    "our_tokens_per_cpu_s": round(mine.units / mine.cpu_s),
                    "trl_tokens_per_cpu_s": round(other.units / other.cpu_s),
                    "wall_ratio": round(wall.median, 3),
                    "cpu_ratio": round(cpu.median, 3),
                },
            )
        )
    return found


def check_losses(losses: dict[str, float]) -> None:
    """Refuse to compare the speed of two different losses.

    Raises:
        SystemExit: They differ by more than 1e-4.
    """
    gap = abs(losses["ours"] - losses["trl"])
    if not gap <= TOLERANCE:
        raise SystemExit(f"The losses differ by {gap:.2g}, nothing was measured: {losses}")


def _ours(learner: Learner, rows: Sequence[TrainingRow], tokens: int) -> int:
    learner.update(rows, 0)
    return tokens


def _theirs(side: TrlSide, batches: Sequence[Padded], tokens: int) -> int:
    side.step(batches)
    return tokens
