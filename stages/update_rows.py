"""The same row three times: as recorded and scored, as methods see it, and as the learner takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivotopd.methods.base import Nats, Row, TokenAdvantage
from pivotopd.records import Episode, Signal, Turn
from pivotopd.scoring import RowDistributions
from pivotopd.training_rows import TrainingRow


def training_row(row: Turn, signal: Signal, seen: Row, advantage: TokenAdvantage) -> TrainingRow:
    """Return a row as the learner takes it."""
    return TrainingRow(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        advantage=advantage.total,
        old_nats=seen.plain_nats,
        reference_nats=nats_of(signal.reference_nats),
        mask=seen.mask,
        is_recovery=row.source == "recovery",
        teacher_nats=advantage.auxiliary_nats,
        targets=advantage.targets,
    )


def nats_of(values: Sequence[float]) -> Nats:
    """Return recorded log-probabilities as an array: (R,) float32."""
    return np.asarray(values, dtype=np.float32)


def method_row(row: Turn, signal: Signal, beside: RowDistributions, episode: Episode, penalty: float) -> Row:
    """Return a row as methods see it; a truncated response is masked."""
    trains = row.finish_reason != "length"
    return Row(
        episode=row.episode,
        group=row.group,
        source="recovery" if row.source == "recovery" else "rollout",
        episode_return=episode.episode_return,
        penalty=0.0 if row.valid or row.source == "recovery" else penalty,
        plain_nats=nats_of(signal.plain_nats),
        hinted_nats=_maybe(signal.hinted_nats),
        lesson_nats=_maybe(signal.lesson_nats),
        mask=np.full(len(row.response_ids), trains, dtype=np.bool_),
        turn=row.turn,
        observation_key=row.observation,
        won=episode.won,
        skill_nats=_maybe(signal.skill_nats),
        peer_nats=_maybe(signal.peer_nats),
        teacher_nats=_maybe(signal.teacher_nats),
        action_mask=None if signal.action_mask is None else np.asarray(signal.action_mask, np.bool_),
        hinted_distributions=beside.hint,
        lesson_distributions=beside.lesson,
        skill_distributions=beside.skill,
    )


def _maybe(values: Sequence[float] | None) -> Nats | None:
    return None if values is None else nats_of(values)
