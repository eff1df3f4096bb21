"""Recovery check: a policy goes on alone from every known mistake, several times.

Writes the replays' episodes and turns, a row a mistake, and the figures of recovery.
"""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.mistakes import Mistake, basis_of, check_basis, load_mistakes
from pivotopd.diagnosis.recovery import recoveries, recovery_jobs, recovery_part
from pivotopd.evaluation import unbroken
from pivotopd.records import Episode, Turn
from pivotopd.records_diagnosis import KnownMistake, Recovery
from stages.diagnose import playing_reads
from stages.figures import write_part
from stages.playing import play_all, player_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (Episode, Turn, KnownMistake, Recovery)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "run": config.name,
        "split": config.diagnosis_split,
        "diagnosis": config.diagnosis.model_dump(
            mode="json", include={"replays", "temperature", "seed", "recovery_draws"}
        ),
        "reach": config.recovery.reach,
        **playing_reads(config),
    }


def run(work: Work, job: Job) -> Artifact:
    """Replay the mistakes with the policy and publish what became of them."""
    config, split = work.config.diagnosis, work.config.diagnosis_split
    watch, ledger = Stopwatch(), Ledger(work)
    max_turns = work.config.environment.max_turns
    with watch.phase("load"):
        player = player_of(work, job, split, config.temperature)
    with watch.phase("replay"):
        mistakes = mistakes_of(work, job)
        jobs = recovery_jobs(
            mistakes, replays=config.replays, seed=config.seed, how=work.config.recovery.reach
        )
        played = unbroken(play_all(work, player, jobs, "recovery replays"), "recovery replays")
    start = None
    if "start" in job.inputs:
        start = {row.mistake: row.rate for row in work.input(job, "start").rows(Recovery)}
    rows = recoveries(mistakes, played, player.origin, max_turns, start)
    part = recovery_part(rows, draws=config.recovery_draws, seed=config.seed)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Episode, [one.episode for one in played])
        writer.write_rows(Turn, [turn for one in played for turn in one.turns])
        writer.write_rows(Recovery, rows)
        write_part(writer, part)
        return writer.publish(
            counts={
                "mistakes": len(rows),
                "replayed": len(played),
                "recovered": sum(row.won for row in rows),
            },
            spent=ledger.spent,
            seconds=watch.seconds,
        )


def mistakes_of(work: Work, job: Job) -> list[Mistake]:
    """Return the set of a job's input ``mistakes``, checked against the present games and engine."""
    artifact, split = work.input(job, "mistakes"), work.config.diagnosis_split
    known = artifact.rows(KnownMistake)
    check_basis(known, basis_of(work.environment, split, work.config.environment.max_turns), artifact.uri)
    tasks = work.environment.tasks(split)
    return load_mistakes(known, artifact.rows(Episode), artifact.rows(Turn), tasks, artifact.uri)


if __name__ == "__main__":
    from stages.command import main

    main("recovery_check")
