"""Token ids against the vocabulary: an id without a row is refused before an engine meets it.

Inside an engine it would be an index error on a CPU, and the end of the process on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pivotopd.errors import ConfigError


def check_ids(rows: Iterable[Sequence[int]], vocabulary: int) -> None:
    """Refuse ids that the model has no embedding for.

    Args:
        rows: Ids of each request: of its prompt, its response or both.
        vocabulary: Ids that the model knows: 0 up to this one.

    Raises:
        ConfigError: An id is none of them; names the request by its place.
    """
    ids = [np.asarray(row, np.int64) for row in rows]
    flat = np.concatenate([np.zeros(0, np.int64), *ids])
    bad = (flat < 0) | (flat >= vocabulary)
    if not bad.any():
        return
    place = int(bad.argmax())
    request = int(np.searchsorted(np.cumsum([len(one) for one in ids]), place, side="right"))
    raise ConfigError(
        f"token id {flat[place]} is not in the vocabulary: the model knows 0 to {vocabulary - 1}",
        where=f"request {request}",
        mend="use the tokenizer of the model that is asked: prompts and engine must be of one model",
    )
