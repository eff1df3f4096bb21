"""What an update tells a tracker: how far hints move the student, and what the optimizer's steps did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pivotopd.depth import Depth
from pivotopd.methods.base import TokenAdvantage
from pivotopd.records import Turn
from pivotopd.scoring import Scored
from pivotopd.training_rows import StepReport
from stages.update_rows import nats_of


def signal_metrics(
    rows: Sequence[Turn], scored: Scored, advantages: Sequence[TokenAdvantage]
) -> Mapping[str, float]:
    """Return how far hints move the student, and how large each part of the advantage is."""
    gaps: dict[str, list[float]] = {"recovery": [], "rollout": []}
    lost: list[float] = []
    for row, signal in zip(rows, scored.signals, strict=True):
        if signal.hinted_nats is not None:
            gaps[row.source].append(float(np.sum(nats_of(signal.hinted_nats) - nats_of(signal.plain_nats))))
        if signal.teacher_nats is not None:
            lost += (nats_of(signal.plain_nats) - nats_of(signal.teacher_nats)).tolist()
    parity = [
        float(np.max(np.abs(nats_of(signal.plain_nats) - nats_of(row.behaviour_logprobs_nats)), initial=0.0))
        for row, signal in zip(rows, scored.signals, strict=True)
        if row.source == "rollout" and math.isclose(row.temperature, 1.0)
    ]
    return {
        "update/recovery_log_ratio_nats": float(np.mean(gaps["recovery"])) if gaps["recovery"] else 0.0,
        "update/prevention_log_ratio_nats": float(np.mean(gaps["rollout"])) if gaps["rollout"] else 0.0,
        **({"update/teacher_reverse_kl_nats": float(np.mean(lost))} if lost else {}),
        **_target_metrics(advantages),
        "update/engine_parity_max_nats": max(parity, default=0.0),
        "update/advantage_abs_mean": float(
            np.mean(np.abs(np.concatenate([one.total for one in advantages]))) if advantages else 0.0
        ),
    }


def _target_metrics(advantages: Sequence[TokenAdvantage]) -> dict[str, float]:
    """Return how much of the self-teacher's probability the kept ids hold; nothing without targets."""
    targets = [target for one in advantages for target in one.targets]
    masses = [np.exp(target.distributions.nats, dtype=np.float64).sum(axis=1) for target in targets]
    return {"update/target_mass_mean": float(np.mean(np.concatenate(masses)))} if masses else {}


def depth_metrics(depth: Depth) -> dict[str, float]:
    """Return what the method's probes of depth have found; nothing for methods without them."""
    named = {"update/depth_average_turns": depth.average_turns, "update/depth_cap_turns": depth.cap_turns}
    return {name: float(value) for name, value in named.items() if value is not None}


def step_metrics(reports: Sequence[StepReport]) -> Mapping[str, float]:
    """Return means over the optimizer steps that were taken, and how many were not."""
    taken = [report for report in reports if not report.skipped]
    means = (
        "loss",
        "policy_loss",
        "auxiliary_loss",
        "kl_nats",
        "clip_fraction",
        "ratio_mean",
        "gradient_norm",
    )
    return {
        **{
            f"update/{name}": float(np.mean([getattr(one, name) for one in taken])) for name in means if taken
        },
        "update/skipped_steps": float(len(reports) - len(taken)),
        "update/first_ratio_gap": reports[0].ratio_gap,
    }
