"""Intervene: the policy finishes its own failed episodes, with and without a change. Writes interventions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.figures import Figure, Part, measured
from pivotopd.diagnosis.interventions import (
    OTHER_TURN,
    Case,
    InterventionRate,
    interventions_of,
    outcomes,
    summarise,
    trials_of,
)
from pivotopd.diagnosis.restored import check_restored, recorded_jobs
from pivotopd.evaluation import at_equal_steps
from pivotopd.records_probes import Intervention
from stages.cases import cases_of
from stages.diagnose import playing_reads
from stages.figures import write_part
from stages.playing import play_all, player_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (Intervention,)
LABELS: Final = {
    "none": "no intervention",
    "resample": "response at the pivotal turn drawn again",
    "other_turn": "oracle action at a later turn, drawn from those that are not pivotal",
    "at_pivot": "oracle action at the pivotal turn",
}
PUBLISHED: Final = {
    "none": "8.2 % [3.8, 13.0]",
    "resample": "6.9 % [2.4, 12.2]",
    "other_turn": "17.2 % [8.3, 27.5] of 51 episodes",
    "at_pivot": "59.0 % [48.3, 69.8]",
    "after_2": "58.3 % [47.6, 69.1]",
    "after_3": "62.2 % [51.4, 72.9]",
}
"""Qwen3-8B on ALFWorld valid_seen, 72 episodes (paper App. A)."""


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "run": config.name,
        "split": config.diagnosis_split,
        "diagnosis": config.diagnosis.model_dump(
            mode="json",
            include={"temperature", "repeats", "forced_after", "most_mistakes", "draws", "seed"},
        ),
        "reach": config.recovery.reach,
        **playing_reads(config),
    }


def run(work: Work, job: Job) -> Artifact:
    """Play all interventions on all failed episodes of the panel, and publish what became of them."""
    config, watch, ledger = work.config.diagnosis, Stopwatch(), Ledger(work)
    how, names = work.config.recovery.reach, interventions_of(config.forced_after)
    with watch.phase("read"):
        found = cases_of(work.input(job, "panel"), work.environment, work.config.diagnosis_split)
        cases = at_equal_steps(found, config.most_mistakes)
    with watch.phase("load"):
        player = player_of(work, job, work.config.diagnosis_split, config.temperature)
    with watch.phase("check"):
        check_restored(cases, list(player.play(recorded_jobs(cases, how))))
    trials = trials_of(
        work.environment,
        cases,
        repeats=config.repeats,
        after=config.forced_after,
        seed=config.seed,
        how=how,
    )
    with watch.phase("play"):
        played = play_all(work, player, [trial.job for trial in trials], "replays with interventions")
    rows = outcomes(trials, played, player.origin)
    rates = summarise(rows, names, draws=config.draws, seed=config.seed)
    part = part_of(rates, found, cases)
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(Intervention, rows)
        write_part(writer, part)
        return writer.publish(
            counts={
                "cases": len(cases),
                "trials": len(rows),
                "won": sum(row.won for row in rows),
                "broken": sum(row.error is not None for row in rows),
            },
            spent=ledger.spent,
            seconds=watch.seconds,
        )


def part_of(rates: Sequence[InterventionRate], found: Sequence[Case], cases: Sequence[Case]) -> Part:
    """Return the figures of the report.

    Args:
        rates: Success by intervention.
        found: Failed episodes with a pivotal turn.
        cases: Those that were replayed.
    """
    figures: list[Figure] = [
        measured(
            f"interventions/{one.intervention}",
            LABELS.get(one.intervention) or _after_label(one.intervention),
            "share",
            one.success,
            published=PUBLISHED.get(one.intervention, ""),
        )
        for one in rates
    ]
    notes = ["Means over episodes of the share of repeats won; the interval is over episodes."]
    if not found:
        notes = ["No episode failed after a pivotal turn, so there is nothing to intervene in."]
    if len(cases) < len(found):
        notes.append(f"{len(cases)} of {len(found)} failed episodes with a pivotal turn, at equal steps.")
    other = next((one for one in rates if one.intervention == OTHER_TURN), None)
    if cases and other is not None:
        count = other.success.episodes if other.success else 0
        notes.append(
            f"Oracle action at another turn: the {count} of {len(cases)} episodes whose drawn turn lies "
            "after the pivotal one; an earlier correction would undo the mistake too."
        )
    broken = sum(one.left_out for one in rates)
    if broken:
        notes.append(f"{broken} replays broke off and count nowhere; their rows say why.")
    return Part("interventions", "Interventions by replay", figures, notes)


def _after_label(name: str) -> str:
    count = name.removeprefix("after_")
    return (
        f"mistake kept, oracle action on the next {count} turns"
        if count != "1"
        else ("mistake kept, oracle action on the next turn")
    )


if __name__ == "__main__":
    from stages.command import main

    main("intervene")
