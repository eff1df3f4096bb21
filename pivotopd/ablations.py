"""Ablations of PivotOPD that change which turns count as pivotal (paper Table S.4).

The labels as stored are the teacher's. What is changed here is changed anew wherever they are read, from the
run's seed, so that recovery and prevention agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pivotopd.records import Label
from pivotopd.seeds import rng_of


def at_random_turns(
    labels: Sequence[Label], turns: Mapping[str, int], run_seed: int, iteration: int
) -> list[Label]:
    """Move each episode's pivotal labels to turns drawn uniformly without replacement from all its turns.

    Number and gold texts stay, in order of time; a label that is not pivotal stays where it is. The paper
    matches the budget and says no more.

    Args:
        labels: Labels of the iteration.
        turns: Number of turns of each episode.
        run_seed: Seed of the run.
        iteration: Training iteration.
    """
    moved = [label for label in labels if not label.pivotal]
    pivotal: dict[str, list[Label]] = {}
    for label in sorted((one for one in labels if one.pivotal), key=lambda one: one.turn):
        pivotal.setdefault(label.episode, []).append(label)
    for episode, found in sorted(pivotal.items()):
        rng = rng_of("random pivotal turns", run_seed, iteration, episode)
        places = sorted(rng.choice(turns[episode], size=len(found), replace=False).tolist())
        moved += [replace(label, turn=place) for label, place in zip(found, places, strict=True)]
    return moved
