"""Diagnosis report: the figures of all parts as Markdown, JSON and plots, beside the published ones."""

from __future__ import annotations

from typing import Any, Final

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.diagnosis.figures import Figure
from pivotopd.diagnosis.plots import plot_failures, plot_interventions, plot_recovery
from pivotopd.diagnosis.report import Report, Subject, from_json, markdown, to_json
from pivotopd.records_diagnosis import EpisodeReading, Recovery
from stages.diagnosis_plan import PARTS, START
from stages.figures import part_of
from stages.metrics import metrics_text
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = ()
IMAGES: Final = {"failures": "failures.png", "interventions": "interventions.png", "recovery": "recovery.png"}
"""Part's name to the file of its plot."""


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration."""
    return {
        "run": config.name,
        "split": config.diagnosis_split,
        "temperature": config.diagnosis.temperature,
        "max_turns": config.environment.max_turns,
    }


def run(work: Work, job: Job) -> Artifact:
    """Write the report of a diagnosis from its parts."""
    watch, ledger, max_turns = Stopwatch(), Ledger(work), work.config.environment.max_turns
    artifacts = {role: work.input(job, role) for role in job.inputs if role != "policy"}
    parts = tuple(part_of(artifacts[stage]) for stage in PARTS)
    started = {role: artifacts[role] for role in START.values() if role in artifacts}
    start: dict[str, Figure] = {}
    for artifact in started.values():
        start |= {one.key: one for one in part_of(artifact).figures}
    report = Report(_subject(work, job, artifacts["mistakes"]), parts, start)
    panel, recovery = started.get(START["diagnose"]), started.get(START["recovery_check"])
    with watch.phase("write"), work.begin(job) as writer:
        with writer.local_folder() as folder:
            plot_failures(
                artifacts["diagnose"].rows(EpisodeReading),
                panel.rows(EpisodeReading) if panel else None,
                folder / IMAGES["failures"],
            )
            plot_interventions(
                next(part for part in parts if part.name == "interventions"), folder / IMAGES["interventions"]
            )
            plot_recovery(
                artifacts["recovery_check"].rows(Recovery),
                recovery.rows(Recovery) if recovery else None,
                max_turns,
                folder / IMAGES["recovery"],
            )
            (folder / "report.md").write_text(markdown(report, IMAGES), encoding="utf-8")
            (folder / "report.json").write_text(to_json(report), encoding="utf-8")
        writer.write_log("metrics.json", metrics_text({}))
        return writer.publish(
            counts={"figures": sum(len(part.figures) for part in parts)},
            spent=ledger.spent,
            seconds=watch.seconds,
        )


def _subject(work: Work, job: Job, mistakes: Artifact) -> Subject:
    config, spec, split = work.config, work.environment.spec, work.config.diagnosis_split
    return Subject(
        run=work.layout.run,
        iteration=job.iteration or 0,
        policy=job.inputs["policy"].digest,
        environment=f"{spec.name} {spec.version}",
        split=split,
        games=work.environment.data_fingerprint(split),
        temperature=config.diagnosis.temperature,
        max_turns=config.environment.max_turns,
        mistakes=mistakes.manifest.notes["fingerprint"],
    )


def report_of(artifact: Artifact) -> Report:
    """Return the report that an artifact of this stage holds."""
    return from_json((artifact.local_path() / "report.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    from stages.command import main

    main("diagnosis_report")
