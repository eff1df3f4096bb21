"""Probabilities: how likely the policy is to make known mistakes, and to do what the oracle does there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.figures import Figure, Part, measured
from pivotopd.diagnosis.probabilities import (
    ACTIONS,
    Action,
    ActionShare,
    ask,
    change_of,
    context_of,
    summarise,
    wilson,
)
from pivotopd.models.base import Sampling
from pivotopd.records_probes import ActionProbability
from pivotopd.rollout import Origin
from stages.diagnose import playing_reads
from stages.figures import write_part
from stages.recovery_check import mistakes_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (ActionProbability,)
TEMPERATURE: Final = 1.0
"""The policy's own distribution, which its log-probabilities are of too."""
LABELS: Final[dict[Action, str]] = {
    "mistake": "the recorded mistake",
    "oracle": "the oracle's action",
    "best": "any action on a shortest way",
}
PUBLISHED: Final[dict[Action, str]] = {
    "mistake": "0.999 before, below 0.00001 after standard OPD",
    "oracle": "below 1 % at every pivotal turn after standard OPD",
    "best": "",
}


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "run": config.name,
        "split": config.diagnosis_split,
        "diagnosis": config.diagnosis.model_dump(
            mode="json", include={"probability_samples", "draws", "seed"}
        ),
        **playing_reads(config),
    }


def run(work: Work, job: Job) -> Artifact:
    """Ask the policy in the context of every known mistake, and publish its probabilities."""
    config, watch, ledger = work.config.diagnosis, Stopwatch(), Ledger(work)
    policy = job.inputs["policy"]
    with watch.phase("read"):
        contexts = [context_of(work.environment, one.transcript, one.turn) for one in mistakes_of(work, job)]
        before = list(work.input(job, "start").rows(ActionProbability)) if "start" in job.inputs else None
    with watch.phase("load"):
        engine = work.engine(policy)
    with watch.phase("ask"):
        rows = ask(
            contexts,
            engine,
            work.prompter(policy),
            samples=config.probability_samples,
            sampling=Sampling(TEMPERATURE, work.config.rollout.response_tokens),
            seed=config.seed,
            origin=Origin(
                work.layout.run,
                job.iteration or 0,
                policy.digest,
                work.environment.data_fingerprint(work.config.diagnosis_split),
            ),
        )
    part = part_of(rows, before, samples=config.probability_samples, draws=config.draws, seed=config.seed)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(ActionProbability, rows)
        write_part(writer, part)
        return writer.publish(
            counts={
                "contexts": len(rows),
                "responses": sum(row.samples for row in rows),
                "scored": sum(row.oracle_nats is not None for row in rows),
            },
            spent=ledger.spent,
            seconds=watch.seconds,
        )


def part_of(
    rows: Sequence[ActionProbability],
    before: Sequence[ActionProbability] | None,
    *,
    samples: int,
    draws: int,
    seed: int,
) -> Part:
    """Return the figures of the report.

    Args:
        rows: The policy's rows.
        before: The start policy's rows in the same contexts; None where the policy is the start policy.
        samples: Responses drawn in each context.
        draws: Resamples of the intervals.
        seed: Seed of the resamples.
    """
    figures: list[Figure] = []
    for one in summarise(rows, draws=draws, seed=seed):
        figures += _figures(one, len(rows))
    if before is not None:
        figures += [
            measured(
                f"probabilities/{action}/change",
                f"{LABELS[action]}: change of the share sampled since the start policy",
                "probability",
                change_of(rows, before, action, draws=draws, seed=seed),
            )
            for action in ACTIONS
        ]
    if not rows:
        notes = ["There is no known mistake, so there is no context to ask in."]
    else:
        _, resolution = wilson(0, samples)
        notes = [
            f"Sampled: {samples} responses at temperature 1 in each context; an action that none commits to "
            f"has a probability below {resolution:.3g} (95 %).",
            "After the recorded thought: the exact probability of the action's tokens behind the thought "
            "that led to the mistake, so the oracle's action is estimated low.",
        ]
    return Part("probabilities", "Probability of the mistake and of the right action", figures, notes)


def _figures(one: ActionShare, contexts: int) -> list[Figure]:
    key, label = f"probabilities/{one.action}", LABELS[one.action]
    figures = [
        measured(f"{key}/sampled", f"{label}: share sampled, mean", "probability", one.sampled),
        Figure(
            f"{key}/sampled_median",
            f"{label}: share sampled, median",
            "probability",
            one.sampled_median,
            count=contexts,
            published=PUBLISHED[one.action],
        ),
    ]
    if one.action == "best":
        return figures
    after, count = f"{label}: probability after the recorded thought", one.scored
    return [
        *figures,
        Figure(f"{key}/scored_median", f"{after}, median", "probability", one.scored_median, count=count),
        Figure(f"{key}/scored_most", f"{after}, largest", "probability", one.scored_most, count=count),
    ]


if __name__ == "__main__":
    from stages.command import main

    main("probabilities")
