"""Agreement: does the configured teacher find the oracle's first pivotal turn. Writes agreement samples."""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.agreement import Agreement, read_samples, samples_of, summarise
from pivotopd.diagnosis.figures import Part, measured
from pivotopd.records_probes import AgreementSample
from pivotopd.teacher_section import LocalSection, OracleSection, SelfSection
from stages.cases import cases_of
from stages.figures import write_part
from stages.teaching import teacher_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (AgreementSample,)
TITLE = "Teacher and oracle agree within one turn"


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration; only a model in this process draws with the seed."""
    found: dict[str, Any] = {
        "teacher": config.teacher_reads,
        "split": config.diagnosis_split,
        "diagnosis": config.diagnosis.model_dump(mode="json", include={"agreement_samples", "draws", "seed"}),
        "environment": config.environment.model_dump(mode="json", include={"engine", "wording", "history"}),
    }
    return {**found, "seed": config.seed} if isinstance(config.teacher, SelfSection | LocalSection) else found


def run(work: Work, job: Job) -> Artifact:
    """Let the teacher read the panel's failed episodes and publish how often it finds the pivot."""
    config, watch, ledger = work.config, Stopwatch(), Ledger(work)
    with watch.phase("read"):
        cases = cases_of(work.input(job, "panel"), work.environment, config.diagnosis_split)
    with watch.phase("load"):
        teacher = teacher_of(work, job)
    with watch.phase("teach"):
        rows = read_samples(
            teacher,
            cases,
            work.environment.wording,
            samples=samples_of(config.teacher, config.diagnosis.agreement_samples),
            max_candidates=config.teacher.max_candidates,
            progress=work.progress,
        )
    found = summarise(rows, draws=config.diagnosis.draws, seed=config.diagnosis.seed)
    part = part_of(found, isinstance(config.teacher, OracleSection))
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(AgreementSample, rows)
        write_part(writer, part)
        return writer.publish(
            counts={
                "cases": len(cases),
                "readings": len(rows),
                "correct": sum(row.correct for row in rows),
                "readings_unread": found.unread,
                **teacher.counts,
            },
            spent=ledger.spent + teacher.spent,
            seconds=watch.seconds,
        )


def part_of(found: Agreement, oracle: bool) -> Part:
    """Return the figures of the report.

    Args:
        found: The agreement.
        oracle: The teacher is the oracle itself.
    """
    figures = [
        measured(
            "agreement/within_one_turn",
            "teacher's pivots within one turn of the oracle's first",
            "share",
            found.correct,
            published="71.1 % (Qwen3-30B-A3B), 84.4 % (Qwen3.5-122B-A10B)",
        ),
        measured(
            "agreement/chance",
            "as many turns drawn at random",
            "share",
            found.chance,
            published="33.6 %, 28.1 %",
        ),
    ]
    if found.correct is None:
        nothing = "No episode failed after a pivotal turn, so there is nothing to read."
        return Part("agreement", TITLE, figures, [nothing])
    each = found.samples // found.correct.episodes
    notes = [f"Readings of each failed episode: {each}. A reading that cannot be parsed counts as wrong."]
    if found.unread:
        notes.append(f"{found.unread} of {found.samples} readings could not be had or parsed.")
    if oracle:
        notes.append("The teacher is the oracle itself, so full agreement is a check and no finding.")
    return Part("agreement", TITLE, figures, notes)


if __name__ == "__main__":
    from stages.command import main

    main("agreement")
