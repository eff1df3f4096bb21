"""What methods share: the group-relative outcome advantage, the log-ratio of two scores, small parts.

    A_row = R_i - b - penalty_row
    b     = mean over the group's episodes i of ( R_i - mean penalty of i's rows )

Source: GRPO (arXiv 2402.03300), with verl-agent's penalty on the score of the turn row, before group
statistics; see docs/method.md, Advantages. The statistics run over the G episodes, each counting once
however many turns it has; without penalties A_row is R_i - mean(R).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from pivotopd.errors import ArtifactError, NumericsError
from pivotopd.methods.base import Nats, Row, Target, TokenAdvantage
from pivotopd.models.base import TokenDistributions

STD_FLOOR = 1e-6


def outcome_advantages(rows: Sequence[Row], *, normalise_std: bool) -> list[float]:
    """Return the group-relative advantage of each row, in order; recovery rows have none and get 0.

    All rows zero, exactly: a group of one episode (nothing to compare, penalties included), and a group whose
    row scores are all equal. With ``normalise_std`` the advantage is divided by std(R) + 1e-6, R being the
    plain returns of the group's episodes and std the unbiased one (torch's, as verl uses). Equal returns
    leave it undivided: otherwise the small penalties alone would be blown up to the size of a success.

    Raises:
        NumericsError: A return or penalty is not finite.
    """
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.source == "recovery":
            continue
        if not (math.isfinite(row.episode_return) and math.isfinite(row.penalty)):
            raise NumericsError(
                f"return {row.episode_return} or penalty {row.penalty} is not finite",
                where=f"episode {row.episode}",
                mend="check the environment's rewards",
            )
        groups.setdefault(row.group, []).append(index)
    result = [0.0] * len(rows)
    for members in groups.values():
        values = _group([rows[index] for index in members], normalise_std)
        for index, value in zip(members, values, strict=True):
            result[index] = value
    return result


def _group(rows: Sequence[Row], normalise_std: bool) -> list[float]:
    """Advantages of the rollout rows of one group."""
    penalties: dict[str, list[float]] = {}
    returns: dict[str, float] = {}
    for row in rows:
        penalties.setdefault(row.episode, []).append(row.penalty)
        returns[row.episode] = row.episode_return
    if len(returns) < 2 or len({row.episode_return - row.penalty for row in rows}) == 1:
        return [0.0] * len(rows)
    scores = [value - math.fsum(penalties[key]) / len(penalties[key]) for key, value in returns.items()]
    baseline = math.fsum(scores) / len(scores)
    divisor = 1.0
    if normalise_std and len(set(returns.values())) > 1:
        divisor = float(np.std(list(returns.values()), ddof=1)) + STD_FLOOR
    return [(row.episode_return - baseline - row.penalty) / divisor for row in rows]


def log_ratio(hinted: Nats, plain: Nats, row: Row) -> Nats:
    """Return the (R,) distillation advantage lT - lO of a row (paper Eq. 4).

    Raises:
        ArtifactError: The two scores are not of the same tokens.
    """
    if hinted.shape != plain.shape:
        raise ArtifactError(
            f"{hinted.shape[0]} hinted log-probabilities stand beside {plain.shape[0]} plain ones",
            where=f"a {row.source} row of episode {row.episode}",
            mend="rerun the stage that scored the rows",
        )
    difference: Nats = (hinted - plain).astype(np.float32)
    return difference


SignalName = Literal["skill_nats", "teacher_nats", "peer_nats"]


def signal_log_ratio(row: Row, name: SignalName) -> Nats | None:
    """Return the (R,) log-ratio of a row's signal to the plain score; None where the row has no such signal.

    Raises:
        ArtifactError: The two scores are not of the same tokens.
    """
    hinted: Nats | None = getattr(row, name)
    return None if hinted is None else log_ratio(hinted, row.plain_nats, row)


def outcome_beside_skill(rows: Sequence[Row], *, normalise_std: bool) -> list[TokenAdvantage]:
    """Return the outcome's advantage of each row, and its scores under a skill for an auxiliary loss.

    Raises:
        ArtifactError: No row was scored under a skill.
    """
    require_signal(rows, "skill_nats", every=False)
    outcomes = outcome_advantages(rows, normalise_std=normalise_std)
    return [
        replace(of_tokens(constant(row, value), value), auxiliary_nats=row.skill_nats)
        for row, value in zip(rows, outcomes, strict=True)
    ]


def require_signal(rows: Sequence[Row], name: SignalName, *, every: bool) -> None:
    """Refuse rollout rows without a signal that the method lives by.

    Args:
        rows: Rows of the update.
        name: The signal.
        every: Every row must have it; else one is enough, as a prompt can be too long to score.

    Raises:
        ArtifactError: It is missing.
    """
    rollout = [row for row in rows if row.source == "rollout"]
    scored = sum(getattr(row, name) is not None for row in rollout)
    if scored < len(rollout) if every else rollout and not scored:
        raise ArtifactError(
            f"{len(rollout) - scored} of {len(rollout)} rollout rows have no {name}",
            mend="score the rows with what this method needs; `pivotopd methods` lists it",
        )


TargetName = Literal["hinted", "lesson", "skill"]


def targets(row: Row, name: TargetName, weight: float, mix: float) -> tuple[Target, ...]:
    """Return the target that a row's tokens have under one privileged text; none without a score or weight.

    Args:
        row: The row.
        name: Which text.
        weight: Weight of the divergence.
        mix: FORWARD, REVERSE, or between them.

    Raises:
        ArtifactError: The row was scored under the text without distributions.
    """
    if weight == 0.0 or getattr(row, f"{name}_nats") is None:
        return ()
    found: TokenDistributions | None = getattr(row, f"{name}_distributions")
    if found is None:
        raise ArtifactError(
            f"a {row.source} row has {name}_nats and no {name}_distributions",
            where=f"episode {row.episode}",
            mend="score the rows with what this method needs",
        )
    return (Target(found, weight, mix),)


def falling(start: float, iterations: int, iteration: int) -> float:
    """Return a coefficient that falls in a line from ``start`` to 0 over some iterations; 0 keeps it."""
    return start if iterations == 0 else start * max(0.0, 1.0 - iteration / iterations)


def by_episode(rows: Sequence[Row]) -> list[list[int]]:
    """Return the indices of each episode's rollout rows, in the order of their turns."""
    episodes: defaultdict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.source == "rollout":
            episodes[row.episode].append(index)
    return [sorted(members, key=lambda index: rows[index].turn) for members in episodes.values()]


def constant(row: Row, value: float) -> Nats:
    """Return one value for all tokens of a row."""
    return np.full(row.plain_nats.shape, value, np.float32)


def of_tokens(values: Nats, outcome: float = 0.0) -> TokenAdvantage:
    """Return an advantage of any per-token values, as float32."""
    return TokenAdvantage(total=np.asarray(values, np.float32), outcome=outcome)
