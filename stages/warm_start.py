"""Warm start: make a tiny student and teach it to play badly but to follow a hint. Writes a model folder.

The artifact is shared by all runs under one root. The stage checks its own result and says where it falls
short; a student that falls short is still published, with the gates it missed in its notes.
"""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.models.checkpoint import save_policy, weights_digest
from pivotopd.warm_start import WarmStartReport, warm_start
from stages.metrics import metrics_text
from stages.work import Job, Stopwatch, Work

TABLES = ()


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "student": config.student.model_dump(mode="json"),
        "warm_start": config.warm_start.model_dump(mode="json"),
        "environment": config.environment.model_dump(
            mode="json",
            include={
                "wording": True,
                "prompt": True,
                "max_turns": True,
                "history": True,
                "generated": {"task_types"},
            },
        ),
        "response_tokens": config.rollout.response_tokens,
        "prompt_tokens": config.rollout.prompt_tokens,
    }


def run(work: Work, job: Job) -> Artifact:
    """Train and check the student, and publish it."""
    policy, report = warm_start(work.config, work.progress)
    watch = Stopwatch()
    with watch.phase("write"), work.begin(job) as writer:
        with writer.local_folder() as folder:
            save_policy(policy, folder)
        writer.write_log("metrics.json", metrics_text(_metrics(report)))
        return writer.publish(
            counts={"demonstrations": report.demonstrations, "check_games": report.start.games},
            spent=report.spent,
            seconds={
                "demonstrate": report.demonstrate_s,
                "imitate": report.imitate_s,
                "check": report.check_s,
                **watch.seconds,
            },
            notes={
                "weights": weights_digest(policy.model),
                "falls_short": "; ".join(report.start.shortfalls),
            },
        )


def _metrics(report: WarmStartReport) -> dict[str, float]:
    start = report.start
    metrics = {
        "warm_start/success": start.success,
        "warm_start/admissible": start.admissible,
        "warm_start/hint_obeyed": start.obeyed,
        "warm_start/mistakes": float(start.mistakes),
        "warm_start/prompt_tokens_mean": report.prompt_tokens,
        "warm_start/response_tokens_mean": report.response_tokens,
    }
    return metrics if start.recovery is None else metrics | {"warm_start/recovery": start.recovery}


if __name__ == "__main__":
    from stages.command import main

    main("warm_start")
