"""Rollout: the current policy plays groups of episodes. Writes episodes and turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.depth import Tail
from pivotopd.errors import ConfigError
from pivotopd.evaluation import summarise_panel
from pivotopd.expert import Begun, with_beginnings
from pivotopd.ledger import Counts
from pivotopd.records import Episode, Skill, Turn
from pivotopd.rollout import Job as EpisodeJob
from pivotopd.rollout import Played, Player, training_jobs
from pivotopd.skills import with_skills
from stages.depth import turn_limit
from stages.metrics import metrics_text
from stages.playing import play_all, player_of
from stages.work import GAMES, Job, Ledger, Stopwatch, Work

TABLES = (Episode, Turn)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration.

    Batch sizes change no result and stay out; so does what chooses the games, since they are an input.
    """
    skills = {"skills": config.method.prompt_skills} if config.method.prompt_skills else {}
    cut = config.method.depth_cut
    return {
        **skills,
        "run": config.name,
        "seed": config.seed,
        "environment": config.environment.model_dump(
            mode="json", exclude={*GAMES, "train_split", "valid_split"}
        ),
        "rollout": config.rollout.model_dump(mode="json", exclude={"batch_episodes"}),
        "dtype": config.update.dtype,
        "engine": config.engine.reads,
        "depth_cut": None if cut is None else {type(cut).__name__: asdict(cut)},
    }


@dataclass(frozen=True)
class Playing:
    """A rollout that is ready to be played.

    Attributes:
        player: Plays it.
        begun: The episodes' jobs.
        limit: Turn limit.
    """

    player: Player
    begun: Begun
    limit: int


def run(work: Work, job: Job) -> Artifact:
    """Play the iteration's episodes and publish them."""
    watch, ledger = Stopwatch(), Ledger(work)
    playing = prepare(work, job, watch)
    with watch.phase("play"):
        played = play_all(work, playing.player, playing.begun.jobs, "episodes")
    return publish(work, job, playing, played, lambda: ledger.spent, watch)


def prepare(work: Work, job: Job, watch: Stopwatch) -> Playing:
    """Load what the rollout needs, and say which episodes are to be played."""
    config, iteration = work.config, _iteration(job)
    split = config.environment.train_split
    with watch.phase("load"):
        tasks, limit = work.environment.tasks(split), turn_limit(work, job)
        player = player_of(work, job, split, config.rollout.temperature, limit=limit)
    jobs = training_jobs(
        tasks,
        run_seed=config.seed,
        iteration=iteration,
        count=config.rollout.tasks,
        group_size=config.rollout.group_size,
    )
    if "skills" in job.inputs:
        jobs = with_skills(jobs, work.input(job, "skills").rows(Skill), config.method.prompt_skills)
    return Playing(player, _begun(work, jobs, iteration, limit), limit)


def publish(
    work: Work,
    job: Job,
    playing: Playing,
    played: Sequence[Played],
    spent: Callable[[], Counts],
    watch: Stopwatch,
) -> Artifact:
    """Publish the episodes that were played, whatever order they ended in."""
    played = sorted(played, key=lambda one: one.episode.episode)
    _refuse_no_prompt(played, work.config.rollout.prompt_tokens)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Episode, [one.episode for one in played])
        writer.write_rows(Turn, [turn for one in played for turn in one.turns])
        metrics = _metrics(played, playing.limit) | work.parity_metrics
        writer.write_log("metrics.json", metrics_text(metrics))
        return writer.publish(
            counts={"episodes": len(played), **playing.begun.counts},
            spent=spent(),
            seconds=watch.seconds,
        )


def _iteration(job: Job) -> int:
    assert job.iteration is not None, "a rollout belongs to an iteration"  # noqa: S101 - a plan always sets it
    return job.iteration


def _begun(work: Work, jobs: list[EpisodeJob], iteration: int, limit: int) -> Begun:
    """Let an expert begin the episodes, where the method enters them late."""
    cut = work.config.method.depth_cut
    if not isinstance(cut, Tail):
        return Begun(jobs, {})
    return with_beginnings(work.environment, jobs, tail_turns=cut.turns_at(iteration), max_turns=limit)


def _refuse_no_prompt(played: Sequence[Played], prompt_tokens: int) -> None:
    """Stop where not even the shortest prompt of any task fits: there is nothing to learn from then."""
    if all(one.episode.termination == "prompt_too_long" and not one.turns for one in played):
        raise ConfigError(
            f"the prompt of every task is longer than {prompt_tokens} tokens",
            where="rollout.prompt_tokens",
            mend="raise it, or set environment.prompt=compact for a tiny student",
        )


def _metrics(played: Sequence[Played], limit: int) -> dict[str, float]:
    panel = summarise_panel(played)
    returns: dict[str, set[float]] = defaultdict(set)
    for one in played:
        returns[one.episode.group].add(one.episode.episode_return)
    turns = [turn for one in played for turn in one.turns]
    return {
        "rollout/success": panel.success,
        **{f"rollout/success/{family}": share for family, share in panel.success_by_family.items()},
        "rollout/turn_limit": float(limit),
        "rollout/turns_mean": panel.turns_mean,
        "rollout/admissible_share": panel.admissible_share,
        "rollout/valid_share": panel.valid_share,
        "rollout/truncated_turns": float(sum(turn.finish_reason == "length" for turn in turns)),
        "rollout/response_tokens_mean": sum(len(turn.response_ids) for turn in turns) / max(1, len(turns)),
        "rollout/broken_episodes": float(sum(one.episode.error is not None for one in played)),
        "rollout/equal_return_groups_share": sum(len(values) == 1 for values in returns.values())
        / max(1, len(returns)),
    }


if __name__ == "__main__":
    from stages.command import main

    main("rollout")
