"""Label: the teacher reads every finished episode and names gold actions. Writes labels and lessons.

For a method with skills written in hindsight it names no action; the lessons are the skills then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.ledger import Counts
from pivotopd.records import Label, Lesson
from pivotopd.teacher.base import Reading, Teacher, Transcript
from pivotopd.teacher.pivots import labels_of, lesson_of
from pivotopd.teacher_section import LocalSection, SelfSection
from stages.metrics import metrics_text
from stages.teaching import teacher_of
from stages.transcripts import transcripts_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (Label, Lesson)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration; only a model in this process draws with the seed."""
    found: dict[str, Any] = {
        "teacher": config.teacher_reads,
        "environment": config.environment.model_dump(mode="json", include={"engine", "wording"}),
    }
    if config.method.analysed:
        found["analysed"] = True
    return {**found, "seed": config.seed} if isinstance(config.teacher, SelfSection | LocalSection) else found


def run(work: Work, job: Job) -> Artifact:
    """Label the iteration's episodes and publish the labels."""
    watch, ledger = Stopwatch(), Ledger(work)
    with watch.phase("read"):
        transcripts = transcripts_of(
            work.input(job, "rollout"), work.environment, work.config.environment.train_split
        )
    with watch.phase("load"):
        teacher = teacher_of(work, job)
    labels: list[Label] = []
    lessons: list[Lesson] = []
    with watch.phase("teach"):
        listed = list(transcripts.values())
        work.progress("episodes labelled", 0, len(listed))
        for done, (transcript, reading) in enumerate(
            zip(listed, readings(work, teacher, listed), strict=True), start=1
        ):
            labels += labels_from(work, teacher, transcript, reading)
            lessons.append(lesson_of(reading, transcript.episode, teacher.name))
            work.progress("episodes labelled", done, len(listed))
    return publish(work, job, labels, lessons, teacher, lambda: ledger.spent, watch)


def readings(work: Work, teacher: Teacher, transcripts: Sequence[Transcript]) -> list[Reading]:
    """Return what a teacher says about episodes, in the method's way."""
    return (teacher.analyse if work.config.method.analysed else teacher.read)(transcripts)


def labels_from(work: Work, teacher: Teacher, transcript: Transcript, reading: Reading) -> list[Label]:
    """Return the labels of one episode."""
    return labels_of(
        reading,
        transcript.turns,
        work.environment.wording,
        teacher.name,
        work.config.teacher.max_candidates,
    )


def publish(
    work: Work,
    job: Job,
    labels: Sequence[Label],
    lessons: Sequence[Lesson],
    teacher: Teacher,
    spent: Callable[[], Counts],
    watch: Stopwatch,
) -> Artifact:
    """Publish labels and lessons: one lesson an episode, both in the order of the episodes."""
    episodes = len(lessons)
    pivotal = sum(label.pivotal for label in labels)
    told = sum(one.lesson is not None for one in lessons)
    unread = sum(one.unread is not None for one in lessons)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Label, labels)
        writer.write_rows(Lesson, lessons)
        writer.write_log(
            "metrics.json",
            metrics_text(
                {
                    "label/candidates": len(labels),
                    "label/pivotal": pivotal,
                    "label/unresolved": sum(label.gold_action is None for label in labels),
                    "label/lessons": told,
                    "label/unread_share": unread / max(1, episodes),
                    "label/pivotal_per_episode": pivotal / max(1, episodes),
                    "label/episodes_with_pivot_share": len({one.episode for one in labels if one.pivotal})
                    / max(1, episodes),
                }
            ),
        )
        return writer.publish(
            counts={
                "episodes": episodes,
                "labels": len(labels),
                "pivotal": pivotal,
                "lessons": told,
                "unread": unread,
                **teacher.counts,
            },
            spent=spent() + teacher.spent,
            seconds=watch.seconds,
        )


if __name__ == "__main__":
    from stages.command import main

    main("label")
