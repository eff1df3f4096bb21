"""Update: score, compute advantages, take one PPO update, publish the next policy.

Everything is scored by the frozen policy before the first optimizer step. Writes signals, advantages and
updates, and the checkpoint at ``RUN/checkpoints/<digest of this job>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.errors import NothingToTrainOn
from pivotopd.ledger import Counts
from pivotopd.methods.base import AuxiliaryLoss, Row, TokenAdvantage
from pivotopd.methods.registry import make_method
from pivotopd.records import (
    Advantage,
    Distribution,
    Episode,
    Signal,
    SkillUse,
    Turn,
    Update,
)
from pivotopd.scoring import Scored, distribution_records
from pivotopd.seeds import seed_of
from pivotopd.training_rows import StepReport, TrainingRow
from stages.ahead import scorers_of
from stages.depth import depth_before, store_depth
from stages.learners import learner_at
from stages.metrics import metrics_text
from stages.update_metrics import depth_metrics, signal_metrics, step_metrics
from stages.update_rows import method_row, training_row
from stages.update_scores import read_beside, signaller_of, trains
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (Signal, Distribution, Advantage, Update, SkillUse)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration; how the same update is computed stays out."""
    scores_skills = make_method(config.method, config.recovery.depth).needs.skill
    return {
        **({"skills": config.skills.top} if scores_skills else {}),
        "seed": config.seed,
        "method": config.method.model_dump(mode="json"),
        "update": config.update.model_dump(mode="json", exclude={*config.update.RUNNING}),
        "history": config.environment.history,
        "prompt_tokens": config.rollout.prompt_tokens,
    }


def run(work: Work, job: Job) -> Artifact:
    """Update the policy and publish what was computed.

    Raises:
        NothingToTrainOn: There is no training signal; no checkpoint is written.
        NumericsError: No gradient was finite, or a weight is not any more; no checkpoint is written.
    """
    config, watch, ledger = work.config, Stopwatch(), Ledger(work)
    with watch.phase("read"):
        rows, episodes = _rows(work, job)
        beside = read_beside(work, job, episodes)
        method = make_method(config.method, config.recovery.depth).at_depth(depth_before(work, job))
        signaller = signaller_of(work, job, method.needs, scorers_of(work, job))
    with watch.phase("score"):
        scored = signaller.score(rows, beside.labels, beside.lessons, beside.winners, beside.skills)
    with watch.phase("advantages"):
        penalty = config.update.invalid_penalty
        penalty = work.environment.invalid_penalty if penalty is None else penalty
        method_rows = [
            method_row(row, signal, distributions, episodes[row.episode], penalty)
            for row, signal, distributions in zip(rows, scored.signals, scored.distributions, strict=True)
        ]
        advantages = method.advantages(method_rows, job.iteration or 0)
    training = [
        training_row(*parts) for parts in zip(rows, scored.signals, method_rows, advantages, strict=True)
    ]
    counts = _signal_counts(job, training, episodes, config.update.idle_limit)
    with watch.phase("learn"):
        reports, weights = _learn(work, job, training, method.auxiliary)
    counts |= _step_counts(reports) | _score_counts(scored)
    depth = method.next_depth(method_rows, job.iteration or 0)
    metrics = {**signal_metrics(rows, scored, advantages), **depth_metrics(depth), **step_metrics(reports)}
    updates = [Update(run=work.layout.run, iteration=job.iteration or 0, **_fields(one)) for one in reports]
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Signal, scored.signals)
        if method.needs.target_tokens:
            writer.write_rows(Distribution, distribution_records(rows, scored))
        writer.write_rows(
            Advantage, [_advantage(*parts) for parts in zip(rows, method_rows, advantages, strict=True)]
        )
        writer.write_rows(Update, updates)
        if beside.uses is not None:
            writer.write_rows(SkillUse, beside.uses)
        writer.write_log("metrics.json", metrics_text(metrics))
        if method.needs.depth_probes:
            store_depth(writer, depth)
        return writer.publish(
            counts=counts,
            spent=ledger.spent + _trained(training, reports),
            seconds=watch.seconds,
            notes={"weights": weights},
        )


def _signal_counts(
    job: Job, training: Sequence[TrainingRow], episodes: Mapping[str, Episode], idle_limit: int
) -> dict[str, int]:
    """Count the rows with a signal; refuse an iteration without any, unless idle ones may pass.

    Groups of equal returns are a healthy outcome while some of them were won: the update is then the KL term.
    """
    signal_rows = sum(
        bool(np.any(row.advantage[row.keep]))
        or ((row.teacher_nats is not None or bool(row.targets)) and bool(row.keep.any()))
        for row in training
    )
    idle = signal_rows == 0 and not any(episode.won for episode in episodes.values())
    if idle and idle_limit == 0:
        raise NothingToTrainOn(
            f"none of {len(training)} rows has an advantage other than zero, and nothing was won",
            where=f"update of iteration {job.iteration}",
            mend="play more tasks or a larger group, check the labels, or set update.idle_limit=N to go on",
        )
    return {
        "rows": len(training),
        "recovery_rows": sum(row.is_recovery for row in training),
        "signal_rows": signal_rows,
        "idle": int(idle),
    }


def _score_counts(scored: Scored) -> dict[str, int]:
    return {
        "hints_too_long": scored.hints_too_long,
        "lessons_too_long": scored.lessons_too_long,
        "peers_too_long": scored.peers_too_long,
        "skills_too_long": scored.skills_too_long,
        "teacher_scored_tokens": scored.teacher_tokens,
    }


def _step_counts(reports: Sequence[StepReport]) -> dict[str, int]:
    return {
        "optimizer_steps": sum(not report.skipped for report in reports),
        "dropped_tokens": sum(report.dropped_tokens for report in reports),
    }


def _trained(training: Sequence[TrainingRow], reports: Sequence[StepReport]) -> Counts:
    """Return the learner's part of the ledger; it computes a row that has a token to train, once."""
    computed = [row for row in training if row.keep.any()]
    return Counts(
        training_input_tokens=sum(len(row.prompt_ids) + len(row.response_ids) for row in computed),
        trained_tokens=sum(report.tokens for report in reports),
        training_repeated_tokens=sum(report.repeated_tokens for report in reports),
        training_padding_tokens=sum(report.padded_tokens for report in reports),
    )


def _rows(work: Work, job: Job) -> tuple[list[Turn], dict[str, Episode]]:
    """Return the rows that train, rollout first, and the episodes by id."""
    rollout = work.input(job, "rollout")
    episodes = {episode.episode: episode for episode in rollout.rows(Episode)}
    rows = rollout.rows(Turn)
    if "recover" in job.inputs:
        rows += work.input(job, "recover").rows(Turn)
    return trains(rows, episodes), episodes


def _learn(
    work: Work, job: Job, training: Sequence[TrainingRow], auxiliary: AuxiliaryLoss | None
) -> tuple[list[StepReport], str]:
    """Take the update with the run's learner; publish the checkpoint unless nothing was learned.

    Raises:
        NumericsError: No gradient was finite, or a weight is not any more; no checkpoint is written.
        ClusterError: A rank of the learner ended; no checkpoint is written.
    """
    seed = seed_of("update", work.config.seed, job.iteration or 0)
    with learner_at(work, job.inputs["policy"], job.inputs["reference"], then=job.digest) as learner:
        reports = learner.train(training, seed, auxiliary)
        learner.check_finite(
            where=f"update of iteration {job.iteration}, before its checkpoint",
            mend="lower update.learning_rate; the checkpoint before is as it was",
        )
        checkpoint = Job(
            "checkpoint", job.iteration, work.layout.checkpoints, job.digest, job.code, job.reads, job.inputs
        )
        weights = learner.weights_digest()
        with work.begin(checkpoint) as writer:
            with writer.local_folder() as folder:
                learner.save(folder)
            published = writer.publish(counts={}, notes={"weights": weights})
        # the checkpoint's own manifest has no ledger: its bytes stand in the update's
        work.count(Counts(bytes_written=sum(file.bytes for file in published.manifest.files)))
    return reports, published.manifest.notes["weights"]


def _advantage(row: Turn, seen: Row, advantage: TokenAdvantage) -> Advantage:
    return Advantage(
        episode=row.episode,
        turn=row.turn,
        source=row.source,
        pivot_turn=row.pivot_turn,
        total=advantage.total.tolist(),
        outcome=float(advantage.outcome),
        prevention=advantage.prevention.tolist(),
        recovery=advantage.recovery.tolist(),
        lesson=advantage.lesson.tolist(),
        mask=seen.mask.astype(np.int32).tolist(),
    )


def _fields(report: StepReport) -> dict[str, Any]:
    known = set(Update.__dataclass_fields__)
    return {name: value for name, value in asdict(report).items() if name in known}


if __name__ == "__main__":
    from stages.command import main

    main("update")
