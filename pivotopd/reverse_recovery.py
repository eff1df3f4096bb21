"""Reverse-KL recovery, an ablation: the turns after a mistake as the student played them, scored under hints.

Paper Table S.4; it gives no details. Here the chain follows the recorded episode: for k = 1..K the teacher
names the action for the recorded context c_{t+k}, and the row is the student's own recorded response y_{t+k},
to be scored with that hint and without it. Nothing is sampled and no environment is needed. The filters for
what a hinted model writes (a committed action, no mention of the hint) do not apply: no hint was shown.
"""

from __future__ import annotations

from collections.abc import Generator as Steps
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pivotopd.recovery import Asks, Recoverer, Writes, _Chain
from pivotopd.teacher.base import Query


class ReverseRecoverer(Recoverer):
    """A :class:`~pivotopd.recovery.Recoverer` whose rows are the recorded turns after each pivotal turn."""

    def _deepen(self, chains: Sequence[_Chain], depth: int) -> Steps[Asks | Writes, Any, None]:
        self.teacher_queries += len(chains)
        queries = [
            Query(chain.transcript.task, chain.prompt.view, chain.snapshot, chain.state_hash)
            for chain in chains
        ]
        golds: Sequence[str | None] = yield Asks(queries)
        for chain, gold in zip(chains, golds, strict=True):
            hinted = self.prompter.hinted(chain.prompt, hint=gold) if gold else None
            turns = chain.transcript.turns
            recorded = turns[chain.pivot + depth]
            if gold is None:
                chain.stop("unresolved")
            elif hinted is None:
                chain.stop("prompt_too_long")
            elif self.prompter.wording.privileged(self.prompter.wording.prompt(chain.prompt.view)):
                chain.stop("privileged_marker")
            elif recorded.finish_reason == "length":
                chain.stop("truncated_response")
            else:
                chain.rows.append(
                    replace(
                        recorded,
                        source="recovery",
                        reward=0.0,
                        next_observation=None,
                        pivot_turn=chain.pivot,
                        depth=depth,
                        gold_action=gold,
                        hinted_prompt_ids=hinted,
                    )
                )
                if depth < self.depth:
                    self._follow(chain, depth)

    def _follow(self, chain: _Chain, depth: int) -> None:
        """Stand in the next recorded context, or stop where the episode ended."""
        if chain.pivot + depth + 1 >= len(chain.transcript.turns):
            chain.stop("episode_over")
            return
        following = self._begin(chain.transcript, chain.pivot + depth)
        chain.prompt, chain.pairs = following.prompt, following.pairs
        chain.snapshot, chain.state_hash = following.snapshot, following.state_hash
