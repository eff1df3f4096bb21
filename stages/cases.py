"""What the parts of a diagnosis read of its panel: failed episodes and their pivotal turns."""

from __future__ import annotations

from collections import defaultdict

from pivotopd.artifacts import Artifact
from pivotopd.diagnosis.interventions import Case
from pivotopd.diagnosis.pivots import PIVOTAL
from pivotopd.environments.base import Environment
from pivotopd.records_diagnosis import EpisodeReading, TurnReading
from stages.transcripts import transcripts_of


def cases_of(panel: Artifact, environment: Environment, split: str) -> list[Case]:
    """Return the failed episodes of a panel that have a pivotal turn, by id.

    Raises:
        ArtifactError: An episode's task is not among the environment's, or has other content now.
    """
    transcripts = transcripts_of(panel, environment, split)
    pivotal: dict[str, set[int]] = defaultdict(set)
    for turn in panel.rows(TurnReading):
        if turn.change in PIVOTAL:
            pivotal[turn.episode].add(turn.turn)
    return [
        Case(transcripts[one.episode], one.pivot_turn, frozenset(pivotal[one.episode]))
        for one in sorted(panel.rows(EpisodeReading), key=lambda one: one.episode)
        if one.kind == "after_pivot" and one.pivot_turn is not None
    ]
