"""Evaluate: a policy plays a fixed panel, and goes on from recorded pivotal mistakes.

The mistakes are those of the start policy's own evaluation, so the first evaluation of a run finds them and
every later one replays the same. Writes episodes and turns of the panel, the outcome of every replay, and
``panel.json``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.mistakes import Mistake, find_mistakes
from pivotopd.diagnosis.recovery import RecoveryRate, recovery_jobs, summarise_recovery
from pivotopd.environments.base import Task
from pivotopd.evaluation import Panel, panel_jobs, panel_of, summarise_panel, unbroken
from pivotopd.records import Episode, Replay, Turn
from pivotopd.replays import replay_rows
from pivotopd.rollout import Played
from pivotopd.teacher.base import Transcript
from stages.metrics import metrics_text
from stages.playing import play_all, player_of
from stages.transcripts import transcripts_of
from stages.work import GAMES, Job, Ledger, Stopwatch, Work

TABLES = (Episode, Turn, Replay)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "run": config.name,
        "evaluation": config.evaluation.model_dump(mode="json", exclude={"every"}),
        "environment": config.environment.model_dump(mode="json", exclude={*GAMES, "train_split"}),
        "rollout": config.rollout.model_dump(mode="json", include={"prompt_tokens", "response_tokens"}),
        "dtype": config.update.dtype,
        "engine": config.engine.reads,
    }


def run(work: Work, job: Job) -> Artifact:
    """Evaluate a policy and publish its episodes and figures."""
    config, watch, ledger = work.config.evaluation, Stopwatch(), Ledger(work)
    split = work.config.environment.valid_split
    tasks = panel_of(work.environment.tasks(split), config.tasks)
    with watch.phase("load"):
        player = player_of(work, job, split, config.temperature)
    with watch.phase("panel"):
        played = play_all(
            work, player, panel_jobs(tasks, samples=config.samples, seed=config.seed), "panel episodes"
        )
    panel = summarise_panel(played)
    given_up, rate = 0, None
    replays: list[Replay] = []
    if config.recovery_mistakes:
        with watch.phase("recovery"):
            mistakes, given_up = _mistakes(work, job, tasks, played)
            jobs = recovery_jobs(
                mistakes, replays=config.recovery_replays, seed=config.seed, how=work.config.recovery.reach
            )
            replayed = unbroken(play_all(work, player, jobs, "recovery replays"), "recovery replays")
            rate = summarise_recovery(replayed, replays=config.recovery_replays)
            replays = replay_rows(mistakes, replayed)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Episode, [one.episode for one in played])
        writer.write_rows(Turn, [turn for one in played for turn in one.turns])
        writer.write_rows(Replay, replays)
        writer.write_log("metrics.json", metrics_text(_metrics(panel, rate)))
        writer.write_log("panel.json", _panel_text(split, tasks))
        return writer.publish(
            counts={
                "episodes": len(played),
                "won": sum(one.episode.won for one in played),
                "mistakes": rate.mistakes if rate else 0,
                "searches_given_up": given_up,
            },
            spent=ledger.spent,
            seconds=watch.seconds,
        )


def _mistakes(
    work: Work, job: Job, tasks: Sequence[Task], played: Sequence[Played]
) -> tuple[list[Mistake], int]:
    """Return the start policy's mistakes: of its stored evaluation, or of this one where it is the start."""
    if "start" in job.inputs:
        split = work.config.environment.valid_split
        transcripts = list(transcripts_of(work.input(job, "start"), work.environment, split).values())
    else:
        by_id = {task.id: task for task in tasks}
        transcripts = [Transcript(by_id[one.episode.task], one.episode, one.turns) for one in played]
    return find_mistakes(work.environment, transcripts, limit=work.config.evaluation.recovery_mistakes)


def _panel_text(split: str, tasks: Sequence[Task]) -> str:
    listed = [{"id": task.id, "family": task.family, "sha256": task.content_hash} for task in tasks]
    return json.dumps({"split": split, "tasks": listed}, indent=1) + "\n"


def _metrics(panel: Panel, rate: RecoveryRate | None) -> dict[str, float]:
    metrics = {
        "evaluate/episodes": float(panel.episodes),
        "evaluate/success": panel.success,
        "evaluate/family_mean": panel.family_mean,
        **{f"evaluate/success/{family}": share for family, share in panel.success_by_family.items()},
        "evaluate/turns_mean": panel.turns_mean,
        "evaluate/admissible_share": panel.admissible_share,
        "evaluate/valid_share": panel.valid_share,
    }
    if rate is not None:
        metrics["evaluate/recovery_rate"] = rate.rate
        metrics["evaluate/mistakes"] = float(rate.mistakes)
        if rate.turns_mean is not None:
            metrics["evaluate/turns_to_recover_mean"] = rate.turns_mean
    return metrics


if __name__ == "__main__":
    from stages.command import main

    main("evaluate")
