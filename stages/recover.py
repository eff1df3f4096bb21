"""Recover: a hinted copy of the student goes on from its own mistakes. Writes branch turns and chains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.ledger import Counts
from pivotopd.models.base import Generator
from pivotopd.records import Chain, Turn
from pivotopd.recovery import Recovered, Recoverer
from pivotopd.teacher.base import Teacher
from stages.ablations import labels_read, recoverer_kind
from stages.metrics import metrics_text
from stages.teaching import teacher_of
from stages.transcripts import transcripts_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (Turn, Chain)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    method = config.method
    return {
        "seed": config.seed,
        "recovery": config.recovery.model_dump(mode="json"),
        "method": {
            "random_pivots": method.random_pivots,
            "reverse_recovery": method.reverse_recovery,
            "hint_form": method.hint_form,
        },
        "teacher": config.teacher_reads,
        "rollout": config.rollout.model_dump(
            mode="json", include={"temperature", "prompt_tokens", "response_tokens"}
        ),
        "environment": config.environment.model_dump(
            mode="json", include={"max_turns", "history", "prompt", "engine", "wording"}
        ),
        "dtype": config.update.dtype,
    }


def run(work: Work, job: Job) -> Artifact:
    """Write the iteration's recovery branches and publish them."""
    config, watch, ledger = work.config, Stopwatch(), Ledger(work)
    with watch.phase("read"):
        transcripts = transcripts_of(
            work.input(job, "rollout"), work.environment, config.environment.train_split
        )
        labels = labels_read(work, job, {key: len(one.turns) for key, one in transcripts.items()})
        engine = work.engine(job.inputs["policy"])
    teacher = teacher_of(work, job)
    recoverer = recoverer_of(work, job, engine, teacher)
    with watch.phase("recover"):
        recovered = recoverer.recover(transcripts, labels, job.iteration or 0)
    return publish(work, job, recovered, recoverer, lambda: ledger.spent, watch)


def recoverer_of(work: Work, job: Job, engine: Generator, teacher: Teacher) -> Recoverer:
    """Return what writes a job's recoveries."""
    config = work.config
    return recoverer_kind(config)(
        work.environment,
        work.prompter(job.inputs["policy"]),
        engine,
        teacher,
        work.sampling,
        max_turns=config.environment.max_turns,
        depth=config.recovery.depth,
        limit=config.recovery.limit,
        how=config.recovery.reach,
        run_seed=config.seed,
    )


def publish(
    work: Work,
    job: Job,
    recovered: Recovered,
    recoverer: Recoverer,
    spent: Callable[[], Counts],
    watch: Stopwatch,
) -> Artifact:
    """Publish the branches, by episode, pivotal turn and depth."""
    teacher = recoverer.teacher
    stops = Counter(chain.stopped for chain in recovered.chains)
    obeyed = sum(
        work.environment.wording.normal_form(turn.action)
        == work.environment.wording.normal_form(turn.gold_action or "")
        for turn in recovered.turns
    )
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Turn, recovered.turns)
        writer.write_rows(Chain, recovered.chains)
        writer.write_log(
            "metrics.json",
            metrics_text(
                {
                    "recover/chains": len(recovered.chains),
                    "recover/rows": len(recovered.turns),
                    "recover/hint_obeyed_share": obeyed / max(1, len(recovered.turns)),
                    **{f"recover/stopped/{reason}": count for reason, count in sorted(stops.items())},
                }
            ),
        )
        return writer.publish(
            counts={
                "chains": len(recovered.chains),
                "recovery_rows": len(recovered.turns),
                "teacher_queries": recoverer.teacher_queries,
                **{f"stopped_{reason}": count for reason, count in sorted(stops.items())},
                **teacher.counts,
            },
            spent=spent() + teacher.spent,
            seconds=watch.seconds,
        )


if __name__ == "__main__":
    from stages.command import main

    main("recover")
