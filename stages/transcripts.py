"""Rows back to episodes: what label, recover and evaluate read of a rollout artifact."""

from __future__ import annotations

from collections import defaultdict

from pivotopd.artifacts import Artifact
from pivotopd.environments.base import Environment
from pivotopd.errors import ArtifactError
from pivotopd.records import Episode, Turn
from pivotopd.teacher.base import Transcript


def transcripts_of(artifact: Artifact, environment: Environment, split: str) -> dict[str, Transcript]:
    """Return an artifact's episodes by id, with their tasks.

    Raises:
        ArtifactError: An episode's task is not among the environment's, or has other content now.
    """
    tasks = {task.id: task for task in environment.tasks(split)}
    turns: dict[str, list[Turn]] = defaultdict(list)
    for turn in artifact.rows(Turn):
        turns[turn.episode].append(turn)
    transcripts: dict[str, Transcript] = {}
    for episode in artifact.rows(Episode):
        task = tasks.get(episode.task)
        if task is None or task.content_hash != episode.task_hash:
            state = "does not exist" if task is None else "has other content"
            raise ArtifactError(
                f"task {episode.task} of split {split!r} {state} now",
                where=artifact.uri,
                mend="use the games that the rollout played, or rerun the rollout stage",
            )
        ordered = sorted(turns[episode.episode], key=lambda turn: turn.turn)
        transcripts[episode.episode] = Transcript(task, episode, ordered)
    return transcripts
