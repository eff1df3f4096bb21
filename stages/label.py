"""Label: the teacher reads every finished episode and names gold actions. Writes labels."""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.records import Label
from pivotopd.teacher.pivots import labels_of
from pivotopd.teacher.registry import make_teacher
from stages.metrics import metrics_text
from stages.transcripts import transcripts_of
from stages.work import Job, Stopwatch, Work

TABLES = (Label,)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "teacher": config.teacher.model_dump(mode="json"),
        "environment": config.environment.model_dump(mode="json", include={"engine", "wording", "history"}),
    }


def run(work: Work, job: Job) -> Artifact:
    """Label the iteration's episodes and publish the labels."""
    config, watch = work.config, Stopwatch()
    with watch.phase("read"):
        transcripts = transcripts_of(
            work.input(job, "rollout"), work.environment, config.environment.train_split
        )
    teacher = make_teacher(config, work.environment)
    labels: list[Label] = []
    with watch.phase("teach"):
        listed = list(transcripts.values())
        for done, (transcript, reading) in enumerate(zip(listed, teacher.read(listed), strict=True), start=1):
            labels += labels_of(
                reading,
                transcript.turns,
                work.environment.wording,
                teacher.name,
                config.teacher.max_candidates,
            )
            work.progress("episodes labelled", done, len(listed))
    pivotal = sum(label.pivotal for label in labels)
    with work.begin(job) as writer:
        writer.write_rows(Label, labels)
        writer.write_log(
            "metrics.json",
            metrics_text(
                {
                    "label/candidates": len(labels),
                    "label/pivotal": pivotal,
                    "label/unresolved": sum(label.gold_action is None for label in labels),
                    "label/pivotal_per_episode": pivotal / max(1, len(transcripts)),
                    "label/episodes_with_pivot_share": len({one.episode for one in labels if one.pivotal})
                    / max(1, len(transcripts)),
                }
            ),
        )
        return writer.publish(
            counts={
                "episodes": len(transcripts),
                "labels": len(labels),
                "pivotal": pivotal,
                **teacher.counts,
            },
            seconds=watch.seconds,
        )


if __name__ == "__main__":
    from stages.command import main

    main("label")
