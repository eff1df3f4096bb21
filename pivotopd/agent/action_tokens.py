"""Which of a response's tokens write its action, exactly: from token ids, never from text encoded anew."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pivotopd.environments.base import Wording
from pivotopd.models.base import Codec


def action_mask(response_ids: Sequence[int], wording: Wording, codec: Codec) -> npt.NDArray[np.bool_]:
    """Return the (R,) mask of the tokens that write the committed action; all False without one.

    A token at the edge that also writes something else (a blank, a bracket) is inside. A token that holds
    only some bytes of a character is where that character is.

    Args:
        response_ids: (R,) sampled ids.
        wording: Says where the action stands in the text.
        codec: The tokenizer that sampled them.
    """
    mask = np.zeros(len(response_ids), np.bool_)
    text = codec.decode(response_ids)[0]
    span = wording.action_span(text)
    if span is None:
        return mask
    start, end = span

    def written(token: int) -> int:
        """Return how many characters of the text stand after this token; it never falls."""
        prefix = codec.decode(response_ids[: token + 1])[0]
        pairs = enumerate(zip(prefix, text, strict=False))
        return next((at for at, (one, other) in pairs if one != other), min(len(prefix), len(text)))

    tokens = range(len(response_ids))
    reaches_start = 0 if start == 0 else bisect_left(tokens, start, key=written) + 1
    first = min(bisect_right(tokens, start, key=written), reaches_start)
    last = bisect_left(tokens, end, key=written)
    mask[first : last + 1] = True
    return mask
