"""The log-probability of an action after a recorded thought, exactly: from token ids.

Legend: R response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pivotopd.agent.action_tokens import action_mask
from pivotopd.environments.base import Wording
from pivotopd.models.base import Codec, Nats


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """A response and its tokens that decide the action.

    Attributes:
        response_ids: (R,) ids.
        mask: (R,) True on the tokens that write the action, and on the one after them, which ends it: without
            it, "go to shelf 1" would hold the probability of "go to shelf 12" too.
    """

    response_ids: Sequence[int]
    mask: npt.NDArray[np.bool_]

    def nats(self, logprobs: Nats) -> float:
        """Return the action's log-probability, given the (R,) log-probabilities of the response's tokens."""
        return float(np.asarray(logprobs, np.float64)[self.mask].sum())


def action_tokens(response_ids: Sequence[int], wording: Wording, codec: Codec) -> ActionTokens | None:
    """Return the action's tokens of a response; None where it commits to none."""
    mask = action_mask(response_ids, wording, codec)
    if not mask.any():
        return None
    last = int(np.flatnonzero(mask)[-1])
    mask[last : last + 2] = True
    return ActionTokens(list(response_ids), mask)


def with_action(
    response_ids: Sequence[int], action: str, wording: Wording, codec: Codec
) -> ActionTokens | None:
    """Return a recorded response with another action in the place of its own.

    The sampled tokens before the action stay as they are; the rest is written anew, so it has the tokens that
    the tokenizer gives to written text.

    Args:
        response_ids: (R,) recorded ids.
        action: The other action.
        wording: Says where the action stands.
        codec: The tokenizer that sampled the response.

    Returns:
        The tokens; None where the response commits to no action, or its text cannot be split there.
    """
    text, escaped = codec.decode(response_ids)
    span = wording.action_span(text)
    mask = action_mask(response_ids, wording, codec)
    if escaped or span is None or not mask.any():
        return None
    kept = list(response_ids)[: int(np.flatnonzero(mask)[0])]
    before, _ = codec.decode(kept)
    if len(before) > span[0] or not text.startswith(before):
        return None
    written = codec.encode_response(text[len(before) : span[0]] + action + text[span[1] :])
    ids = [*kept, *written]
    reply = wording.parse(codec.decode(ids)[0])
    if not reply.committed or wording.normal_form(reply.action) != wording.normal_form(action):
        return None
    return action_tokens(ids, wording, codec)
