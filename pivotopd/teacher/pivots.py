"""The pivot test: a candidate turn is pivotal if and only if the student's action is not the gold one.

Paper App. B; see docs/method.md, Pivot test. Actions are compared in the environment's normal
form; a response without an action in the required form is a mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.environments.base import Wording
from pivotopd.records import Episode, Label, Lesson, Turn
from pivotopd.teacher.base import Reading


def labels_of(
    reading: Reading, turns: Sequence[Turn], wording: Wording, teacher: str, max_candidates: int
) -> list[Label]:
    """Return the labels of an episode: its eligible candidates, tested.

    Turns that do not exist are ignored, the first of duplicate turns is kept, and at most
    ``max_candidates`` remain, in the teacher's order.

    Args:
        reading: What the teacher said.
        turns: The episode's turns, by index.
        wording: Gives the normal form of an action.
        teacher: Name of the teacher.
        max_candidates: m.
    """
    labels: dict[int, Label] = {}
    for candidate in reading.candidates:
        if not 0 <= candidate.turn < len(turns) or candidate.turn in labels or len(labels) >= max_candidates:
            continue
        turn = turns[candidate.turn]
        accepted = [candidate.gold_action, *candidate.accepted] if candidate.gold_action else []
        accepted = list(dict.fromkeys(accepted))
        agrees = turn.committed and wording.normal_form(turn.action) in map(wording.normal_form, accepted)
        reason = "unresolved" if candidate.gold_action is None else "agrees" if agrees else "pivotal"
        labels[candidate.turn] = Label(
            run=turn.run,
            iteration=turn.iteration,
            episode=turn.episode,
            turn=candidate.turn,
            gold_written=candidate.gold_written,
            gold_action=candidate.gold_action,
            accepted_actions=accepted,
            student_action=turn.action,
            pivotal=reason == "pivotal",
            reason=reason,
            distance_before=candidate.distance_before,
            distance_after=candidate.distance_after,
            teacher=teacher,
        )
    return [labels[index] for index in sorted(labels)]


def lesson_of(reading: Reading, episode: Episode, teacher: str) -> Lesson:
    """Return what a teacher said about an episode as a whole; an episode without any label has one too."""
    return Lesson(
        run=episode.run,
        iteration=episode.iteration,
        episode=episode.episode,
        lesson=reading.lesson,
        summary=reading.summary,
        step_turns=[turn for turn, _ in reading.step_lessons],
        step_lessons=[sentence for _, sentence in reading.step_lessons],
        unread=reading.unread,
        teacher=teacher,
        prompt_hash=reading.prompt_hash,
        raw_reply=reading.raw_reply,
    )
