"""What became of each replay of an evaluation, as rows: recovery mistake by mistake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pivotopd.diagnosis.mistakes import Mistake
from pivotopd.records import Replay
from pivotopd.rollout import Played


def replay_rows(mistakes: Sequence[Mistake], played: Iterable[Played]) -> list[Replay]:
    """Return the outcome of every replay, by mistake and replay.

    Args:
        mistakes: What was replayed.
        played: The replays that ``recovery_jobs`` asked for.
    """
    by_group = {f"recovery/{mistake.transcript.episode.episode}": mistake for mistake in mistakes}
    rows = []
    for one in played:
        mistake, episode = by_group[one.episode.group], one.episode
        rows.append(
            Replay(
                run=episode.run,
                iteration=episode.iteration,
                mistake=mistake.transcript.episode.episode,
                task=episode.task,
                family=episode.family,
                pivot_turn=mistake.turn,
                state_hash=mistake.transcript.turns[mistake.turn + 1].state_hash,
                distance_after=mistake.distance_after,
                replay=episode.sample,
                seed=episode.seed,
                won=episode.won,
                turns=episode.turns,
                termination=episode.termination,
                policy=episode.policy,
            )
        )
    return sorted(rows, key=lambda row: (row.mistake, row.replay))
