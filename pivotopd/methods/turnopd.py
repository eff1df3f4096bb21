"""TurnOPD: a larger model's log-ratio, weighted by turn depth; a controller sets how deep rollouts go.

    A_l     = omega_t * ( lT[larger model] - lO )   turns t < cap;   0 beyond
    omega_t = b_t * N / N_t                         N_t tokens at depth t, N all tokens below the cap
    b_t     = (1 - alpha) * n_t / sum(n) + alpha / T
                                                    n_t episodes that reach depth t, T depths below the cap
    alpha   = clip( (iteration - s) / (e - s), 0, 1 )

So the token mean is the b-weighted sum of the depths' token means. The controller, after each iteration
whose rollouts are not cut (warm-up and probes), depths counted from 1:

    K_t   = mean over turns at depth t of their mean ( lO - lT )         m_t = max(K_t, 0) * n_t / n_1
    H_eff = round( sum_t t * m_t / sum m )
    H_cov = 0.8-quantile of the lengths of successful episodes, if there are 8 or more
    ema   = 0.7 * ema + 0.3 * max(H_eff, H_cov)      cap = clip( round(ema) + 1, 2, H_max )

Source: TurnOPD, arXiv 2607.05804, as described by third parties; no code is known. omega_t is our form of
its weighted loss as an advantage; s and e are iterations. The warm-up has no cap but moves the average; a
probe plays on beyond the cap in force, and what lies beyond only measures.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from pivotopd.depth import Depth
from pivotopd.methods.advantage import by_episode, constant, of_tokens, require_signal, signal_log_ratio
from pivotopd.methods.base import Method, Needs, Row, TokenAdvantage
from pivotopd.methods.sections import TurnOpdMethod


class TurnOpd(Method):
    """Reverse-KL score gradient to a larger model, balanced between depths.

    Args:
        section: Its settings.
        depth: What earlier probes have found.
    """

    def __init__(self, section: TurnOpdMethod, depth: Depth | None = None) -> None:
        self.needs = Needs(larger_teacher=True, depth_cut=True, depth_probes=True)
        self._section = section
        self._depth = depth or Depth()

    def at_depth(self, depth: Depth) -> TurnOpd:
        """Return this method with what earlier probes have found."""
        return TurnOpd(self._section, depth)

    def next_depth(self, rows: Sequence[Row], iteration: int) -> Depth:
        """Return the average and cap after an iteration; only rollouts that were not cut move them."""
        if not self._section.depth_cut.uncut(iteration):
            return self._depth
        asked = probed_depth(rows, self._section)
        return Depth(*next_cap(self._depth.average_turns, asked, self._section))

    def advantages(self, rows: Sequence[Row], iteration: int) -> list[TokenAdvantage]:
        """Return one advantage a row, in order.

        Raises:
            ArtifactError: A rollout row was not scored by the larger model, or scores differ in length.
        """
        require_signal(rows, "teacher_nats", every=True)
        cap = self._section.depth_cut.cap(iteration, self._depth)
        tokens: Counter[int] = Counter()
        episodes: Counter[int] = Counter()
        for row in rows:
            if row.source == "rollout" and row.turn < cap and row.mask.any():
                tokens[row.turn] += int(row.mask.sum())
                episodes[row.turn] += 1
        blend = self.blend(episodes, iteration)
        total = sum(tokens.values())
        omega = {turn: blend[turn] * total / tokens[turn] for turn in tokens}
        ratios = [signal_log_ratio(row, "teacher_nats") if row.turn in omega else None for row in rows]
        return [
            of_tokens(constant(row, 0.0) if ratio is None else omega[row.turn] * ratio)
            for row, ratio in zip(rows, ratios, strict=True)
        ]

    def blend(self, episodes: Counter[int], iteration: int) -> dict[int, float]:
        """Return b_t of each depth from the number of episodes that reach it; they add up to 1."""
        start, end = self._section.blend_from, self._section.blend_to
        alpha = min(max((iteration - start) / (end - start), 0.0), 1.0)
        return {
            turn: (1.0 - alpha) * count / episodes.total() + alpha / len(episodes)
            for turn, count in episodes.items()
        }


def probed_depth(rows: Sequence[Row], section: TurnOpdMethod) -> float:
    """Return max(H_eff, H_cov) of a probe: the depth that training should reach, in turns.

    Args:
        rows: Rollout rows of episodes that were not cut.
        section: Quantile and least number of successes.
    """
    gaps: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        ratio = signal_log_ratio(row, "teacher_nats")
        if row.source == "rollout" and ratio is not None and ratio.size:
            gaps[row.turn + 1].append(-float(ratio.mean(dtype=np.float64)))
    first = max((len(found) for found in gaps.values()), default=1)  # every episode has a first turn
    mass = {depth: max(float(np.mean(found)), 0.0) * len(found) / first for depth, found in gaps.items()}
    total = sum(mass.values())
    effective = round(sum(depth * one for depth, one in mass.items()) / total) if total else 0
    lengths = [len(members) for members in by_episode(rows) if rows[members[0]].won]
    enough = len(lengths) >= section.min_successes
    covered = float(np.quantile(lengths, section.quantile)) if enough else 0.0
    return max(float(effective), covered)


def next_cap(previous: float | None, depth: float, section: TurnOpdMethod) -> tuple[float, int]:
    """Return the moving average after a probe and the cap that follows from it; the first probe starts it."""
    ema = depth if previous is None else (1.0 - section.ema) * previous + section.ema * depth
    return ema, min(max(round(ema) + 1, 2), section.max_depth)
