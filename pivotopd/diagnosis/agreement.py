"""Does the teacher find the oracle's first pivotal turn: agreement within one turn, against chance.

Paper App. B; see docs/diagnosis.md. The teacher reads failed episodes as it does in training. A reading is
correct if one of its pivotal turns (candidates whose gold action the student did not take) lies within one
turn of the oracle's first pivot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

from pivotopd.diagnosis.bootstrap import Interval, bootstrap_mean
from pivotopd.diagnosis.interventions import Case
from pivotopd.environments.base import Wording
from pivotopd.progress import Progress, silent
from pivotopd.records_probes import AgreementSample
from pivotopd.teacher.base import Reading, Teacher
from pivotopd.teacher.pivots import labels_of
from pivotopd.teacher_section import OracleSection, TeacherSection

REACH_TURNS: Final = 1
"""Turns by which a detected pivot may lie beside the oracle's."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a teacher with the oracle: means over episodes of means over readings.

    Attributes:
        samples: Readings.
        unread: Readings that could not be had or parsed; they count as wrong.
        correct: Share of correct readings; None without any episode.
        chance: The same of as many turns drawn at random.
    """

    samples: int
    unread: int
    correct: Interval | None
    chance: Interval | None


def samples_of(teacher: TeacherSection, wanted: int) -> int:
    """Return how often each episode is read: once where the teacher always says the same."""
    sampled = not isinstance(teacher, OracleSection) and teacher.temperature != 0
    return wanted if sampled else 1


def chance_of(turns: int, pivot: int, detected: int) -> float:
    """Return how likely one of some turns, drawn uniformly without replacement, is near the pivot.

    ``1 - C(turns - near, detected) / C(turns, detected)`` with ``near`` turns within one of the pivot.

    Args:
        turns: Turns of the episode.
        pivot: Index of the pivotal turn.
        detected: How many turns are drawn; at most ``turns``.
    """
    near = min(turns - 1, pivot + REACH_TURNS) - max(0, pivot - REACH_TURNS) + 1
    return 1.0 - comb(turns - near, detected) / comb(turns, detected)


def read_samples(
    teacher: Teacher,
    cases: Sequence[Case],
    wording: Wording,
    *,
    samples: int,
    max_candidates: int,
    progress: Progress = silent,
) -> list[AgreementSample]:
    """Let the teacher read every failed episode several times, as in training.

    Args:
        teacher: The teacher.
        cases: Failed episodes with their oracle pivots.
        wording: Gives the form in which actions are compared.
        samples: Readings an episode.
        max_candidates: m, most candidates a reading.
        progress: Told how many readings are done.
    """
    transcripts = [case.transcript for case in cases]
    rows = []
    for sample in range(samples):
        readings = teacher.read(transcripts, sample)
        for case, reading in zip(cases, readings, strict=True):
            labels = labels_of(reading, case.transcript.turns, wording, teacher.name, max_candidates)
            detected = [label.turn for label in labels if label.pivotal]
            rows.append(_row(case, sample, teacher.name, detected, reading))
            progress("failed episodes read", len(rows), samples * len(cases))
    return sorted(rows, key=lambda row: (row.episode, row.sample))


def _row(case: Case, sample: int, teacher: str, detected: list[int], reading: Reading) -> AgreementSample:
    episode, turns = case.transcript.episode, len(case.transcript.turns)
    return AgreementSample(
        run=episode.run,
        iteration=episode.iteration,
        episode=episode.episode,
        family=episode.family,
        sample=sample,
        teacher=teacher,
        pivot_turn=case.pivot,
        turns=turns,
        detected=detected,
        unread=reading.unread,
        correct=any(abs(turn - case.pivot) <= REACH_TURNS for turn in detected),
        chance=chance_of(turns, case.pivot, len(detected)),
    )


def summarise(rows: Iterable[AgreementSample], *, draws: int, seed: int) -> Agreement:
    """Return the agreement over readings; their order does not matter.

    Args:
        rows: The readings.
        draws: Resamples of the intervals.
        seed: Seed of the resamples.
    """
    by_episode: dict[str, list[AgreementSample]] = defaultdict(list)
    for row in rows:
        by_episode[row.episode].append(row)
    ordered = [by_episode[name] for name in sorted(by_episode)]
    correct = [sum(row.correct for row in found) / len(found) for found in ordered]
    chance = [sum(row.chance for row in found) / len(found) for found in ordered]
    return Agreement(
        samples=sum(map(len, ordered)),
        unread=sum(row.unread is not None for found in ordered for row in found),
        correct=bootstrap_mean(correct, draws=draws, seed=seed),
        chance=bootstrap_mean(chance, draws=draws, seed=seed),
    )
