"""Skills: the start policy plays training tasks, and the teacher distils a bank of skills from its episodes.

Done once a run, for methods that retrieve skills. Writes the bank, and the episodes and turns behind it.
"""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.errors import ArtifactError
from pivotopd.records import Episode, Skill, Turn
from pivotopd.skills import bank_jobs, bank_of
from pivotopd.teacher.base import Transcript
from stages.metrics import metrics_text
from stages.playing import play_all, player_of
from stages.teaching import teacher_of
from stages.work import GAMES, Job, Ledger, Stopwatch, Work

TABLES = (Episode, Turn, Skill)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration; how many skills are shown is the readers' matter."""
    return {
        "run": config.name,
        "seed": config.seed,
        "skills": config.skills.model_dump(mode="json", exclude={"top"}),
        "teacher": config.teacher_reads,
        "environment": config.environment.model_dump(
            mode="json", exclude={*GAMES, "train_split", "valid_split"}
        ),
        "rollout": config.rollout.model_dump(
            mode="json", include={"temperature", "prompt_tokens", "response_tokens"}
        ),
        "dtype": config.update.dtype,
        "engine": config.engine.reads,
    }


def run(work: Work, job: Job) -> Artifact:
    """Play, distil and publish the bank.

    Raises:
        ArtifactError: No episode gave a skill; a method with skills has nothing to retrieve then.
    """
    config, watch, ledger = work.config.skills, Stopwatch(), Ledger(work)
    with watch.phase("load"):
        work.engine(job.inputs["policy"])
        teacher = teacher_of(work, job)
    with watch.phase("play"):
        transcripts = _play(work, job)
    with watch.phase("distil"):
        texts = teacher.distil(transcripts)
    episodes = [one.episode for one in transcripts]
    bank = bank_of(episodes, texts, entries=config.entries, teacher=teacher.name)
    if not bank:
        raise ArtifactError(
            f"none of {len(episodes)} episodes of the start policy gave a skill",
            where="stage skills",
            mend="raise skills.episodes, or give another teacher or start policy",
        )
    won = sum(skill.won for skill in bank)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Episode, episodes)
        writer.write_rows(Turn, [turn for one in transcripts for turn in one.turns])
        writer.write_rows(Skill, bank)
        writer.write_log(
            "metrics.json",
            metrics_text(
                {
                    "skills/entries": len(bank),
                    "skills/entries_of_won": won,
                    "skills/families": len({skill.family for skill in bank}),
                    "skills/success": sum(one.won for one in episodes) / max(1, len(episodes)),
                }
            ),
        )
        return writer.publish(
            counts={
                "episodes": len(episodes),
                "skills": len(bank),
                "skills_undistilled": sum(text is None for text in texts),
                **teacher.counts,
            },
            spent=ledger.spent + teacher.spent,
            seconds=watch.seconds,
        )


def _play(work: Work, job: Job) -> list[Transcript]:
    """Let the start policy play; an episode that the environment broke off is left out."""
    config, split = work.config, work.config.environment.train_split
    tasks = work.environment.tasks(split)
    jobs = bank_jobs(tasks, run_seed=config.seed, count=config.skills.episodes)
    player = player_of(work, job, split, config.rollout.temperature)
    played = play_all(work, player, jobs, "episodes for skills")
    by_id = {task.id: task for task in tasks}
    return [
        Transcript(by_id[one.episode.task], one.episode, one.turns)
        for one in played
        if one.episode.error is None
    ]


if __name__ == "__main__":
    from stages.command import main

    main("skills")
