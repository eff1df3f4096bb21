"""Mistakes: the fixed set that every policy replays, of the start policy's own failures or given by address.

Made once a run. A given set is copied after its games, wording, engine and turn limit were compared.
"""

from __future__ import annotations

from typing import Any

from pivotopd.artifacts import Artifact, artifact_at
from pivotopd.config import RunConfig
from pivotopd.diagnosis.mistakes import (
    Basis,
    basis_of,
    check_basis,
    find_mistakes,
    load_mistakes,
    recorded,
)
from pivotopd.records import Episode, Turn
from pivotopd.records_diagnosis import EpisodeReading, KnownMistake
from stages.metrics import metrics_text
from stages.transcripts import transcripts_of
from stages.work import Job, Ledger, Stopwatch, Work

TABLES = (Episode, Turn, KnownMistake)


def reads(config: RunConfig) -> dict[str, Any]:
    """Return what this stage reads of a configuration; a given set's address is no part of what it is."""
    return {
        "split": config.diagnosis_split,
        "most": config.diagnosis.most_mistakes,
        "environment": config.environment.model_dump(
            mode="json", include={"name", "engine", "wording", "max_turns"}
        ),
    }


def run(work: Work, job: Job) -> Artifact:
    """Make or copy the set and publish it."""
    watch, ledger, split = Stopwatch(), Ledger(work), work.config.diagnosis_split
    basis = basis_of(work.environment, split, work.config.environment.max_turns)
    last = 0
    with watch.phase("read"):
        if "given" in job.inputs:
            known, episodes, turns = _given(work, basis)
        else:
            known, episodes, turns, last = _own(work, job, basis)
    metrics = {"diagnose/mistakes/known": len(known), "diagnose/mistakes/on_last_turn": last}
    with watch.phase("write"), work.begin(job) as writer:
        writer.write_rows(KnownMistake, known)
        writer.write_rows(Episode, episodes)
        writer.write_rows(Turn, turns)
        writer.write_log("metrics.json", metrics_text(metrics))
        return writer.publish(
            counts={"mistakes": len(known), "on_last_turn": last},
            spent=ledger.spent,
            seconds=watch.seconds,
            notes={"fingerprint": basis.fingerprint},
        )


def _own(work: Work, job: Job, basis: Basis) -> tuple[list[KnownMistake], list[Episode], list[Turn], int]:
    """Return the start policy's mistakes, and how many came on an episode's last turn."""
    panel = work.input(job, "panel")
    readings = [one for one in panel.rows(EpisodeReading) if one.kind == "after_pivot"]
    chosen = {one.episode for one in readings if one.wasted_turns}
    transcripts = transcripts_of(panel, work.environment, basis.split)
    found, _ = find_mistakes(
        work.environment,
        [transcripts[name] for name in sorted(chosen)],
        limit=work.config.diagnosis.most_mistakes,
    )
    known = [recorded(one, work.environment, basis) for one in found]
    episodes = [one.transcript.episode for one in found]
    turns = [turn for one in found for turn in one.transcript.turns[: one.turn + 2]]
    return known, episodes, turns, len(readings) - len(chosen)


def _given(work: Work, basis: Basis) -> tuple[list[KnownMistake], list[Episode], list[Turn]]:
    """Return a given set after checking that it fits and is whole."""
    address = work.config.diagnosis.mistakes
    assert address is not None, "the plan gives this input only then"  # noqa: S101
    artifact = artifact_at(address)
    known, episodes, turns = artifact.rows(KnownMistake), artifact.rows(Episode), artifact.rows(Turn)
    check_basis(known, basis, artifact.uri)
    load_mistakes(known, episodes, turns, work.environment.tasks(basis.split), artifact.uri)
    return known, episodes, turns


if __name__ == "__main__":
    from stages.command import main

    main("mistakes")
