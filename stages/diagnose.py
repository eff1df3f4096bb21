"""Diagnose: a policy plays a panel, and the oracle reads every turn of a checked replay.

Writes episodes, turns, the oracle's readings of both, and the figures of failures.
"""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.failures import episode_reading, failures_part, turn_readings
from pivotopd.diagnosis.pivots import read_episode
from pivotopd.evaluation import panel_jobs, panel_of, unbroken
from pivotopd.records import Episode, Turn
from pivotopd.records_diagnosis import EpisodeReading, TurnReading
from pivotopd.teacher.base import Transcript
from stages.figures import write_part
from stages.playing import play_all, player_of
from stages.work import GAMES, Job, Ledger, Stopwatch, Work

TABLES = (Episode, Turn, EpisodeReading, TurnReading)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "run": config.name,
        "split": config.diagnosis_split,
        "diagnosis": config.diagnosis.model_dump(
            mode="json", include={"tasks", "samples", "temperature", "seed", "draws"}
        ),
        **playing_reads(config),
    }


def playing_reads(config: RunConfig) -> dict[str, Any]:
    """Return what playing reads of a configuration, beside temperature and seed."""
    return {
        "environment": config.environment.model_dump(
            mode="json", exclude={*GAMES, "train_split", "valid_split"}
        ),
        "rollout": config.rollout.model_dump(mode="json", include={"prompt_tokens", "response_tokens"}),
        "dtype": config.update.dtype,
        "engine": config.engine.reads,
    }


def run(work: Work, job: Job) -> Artifact:
    """Play the panel, read it, and publish episodes, readings and figures."""
    config, split = work.config.diagnosis, work.config.diagnosis_split
    watch, ledger = Stopwatch(), Ledger(work)
    tasks = panel_of(work.environment.tasks(split), config.tasks)
    with watch.phase("load"):
        player = player_of(work, job, split, config.temperature)
    with watch.phase("play"):
        jobs = panel_jobs(tasks, samples=config.samples, seed=config.seed)
        played = unbroken(play_all(work, player, jobs, "diagnosis episodes"), "diagnosis episodes")
    by_id = {task.id: task for task in tasks}
    episodes: list[EpisodeReading] = []
    turns: list[TurnReading] = []
    with watch.phase("read"):
        for done, one in enumerate(played, start=1):
            transcript = Transcript(by_id[one.episode.task], one.episode, one.turns)
            reading = read_episode(work.environment, transcript)
            episodes.append(episode_reading(reading, work.environment))
            turns += turn_readings(reading, work.config.environment.max_turns)
            work.progress("episodes read", done, len(played))
    part = failures_part(episodes, turns, draws=config.draws, seed=config.seed)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Episode, [one.episode for one in played])
        writer.write_rows(Turn, [turn for one in played for turn in one.turns])
        writer.write_rows(EpisodeReading, episodes)
        writer.write_rows(TurnReading, turns)
        write_part(writer, part)
        return writer.publish(
            counts={
                "episodes": len(played),
                "won": sum(one.episode.won for one in played),
                "replayed": len(episodes),
                "after_pivot": sum(one.kind == "after_pivot" for one in episodes),
                "no_pivot": sum(one.kind == "no_pivot" for one in episodes),
                "unjudged": sum(one.kind == "unjudged" for one in episodes),
                "unknown_turns": sum(turn.change == "unknown" for turn in turns),
            },
            spent=ledger.spent,
            seconds=watch.seconds,
        )


if __name__ == "__main__":
    from stages.command import main

    main("diagnose")
