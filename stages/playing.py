"""Play a policy in a stage: its player, and all of some jobs with progress told."""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.models.base import Sampling
from pivotopd.rollout import Job as EpisodeJob
from pivotopd.rollout import Origin, Played, Player
from stages.work import Job, Work


def player_of(work: Work, job: Job, split: str, temperature: float, *, limit: int | None = None) -> Player:
    """Return a player with a job's input ``policy``.

    Args:
        work: The process's share of the run.
        job: The job.
        split: Split whose games it plays.
        temperature: Sampling temperature.
        limit: Turn limit; by default the environment's.
    """
    config = work.config
    return Player(
        work.environment,
        work.prompter(job.inputs["policy"]),
        work.engine(job.inputs["policy"]),
        Sampling(temperature, config.rollout.response_tokens),
        config.environment.max_turns if limit is None else limit,
        config.rollout.batch_episodes,
        Origin(
            work.layout.run,
            -1 if job.iteration is None else job.iteration,
            job.inputs["policy"].digest,
            work.environment.data_fingerprint(split),
        ),
    )


def play_all(work: Work, player: Player, jobs: Sequence[EpisodeJob], what: str) -> list[Played]:
    """Play jobs and return their episodes by id.

    Args:
        work: Told how far it is.
        player: Plays them.
        jobs: What to play.
        what: What they are, in the plural.
    """
    played: list[Played] = []
    work.progress(what, 0, len(jobs))
    for one in player.play(jobs):
        played.append(one)
        work.progress(what, len(played), len(jobs))
    return sorted(played, key=lambda one: one.episode.episode)
