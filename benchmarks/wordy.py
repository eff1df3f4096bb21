"""A student that thinks aloud, as real ones do: its responses are short or long, which nobody knows before.

The benchmarks' other students think in some six phrases. This one begins with the weights of one of them and
learns demonstrations whose thoughts end in a lognormal number of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np

from benchmarks.iteration import CACHE, student_folder
from pivotopd import warm_start
from pivotopd.environments.alfworld.demonstrations import Demonstration, demonstrations
from pivotopd.imitation import ImitationPlan, ImitationReport, ImitationRow, Progress, imitate
from pivotopd.models.checkpoint import load_policy
from pivotopd.seeds import rng_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RESPONSE_TOKENS: Final = 200
"""Longest response: five times the mean one, as 512 is for a mean of 100."""
MEAN_WORDS: Final = 45
"""Of the demonstrations. The student says fewer: a long row's tokens weigh less in its batch."""
SIGMA: Final = 1.0
"""Spread of the logarithm of the number of words."""
MOST_WORDS: Final = 160
WORDS: Final = ((12, " hot"), (45, " normal"), (MOST_WORDS, " cold"))
"""Up to how many words a thought ends in which one, again and again: one token each for the tiny tokenizer.

The first says how long it will be, roughly, so that a model as small as this one writes the long ones too.
"""
BETTER: Final[Mapping[str, Any]] = {"gap_share": 0.7, "hinted_share": 0.0, "games": 600, "steps": 1000}
"""The student that it begins with: it wins most of its episodes."""
ALOUD: Final[Mapping[str, Any]] = {**BETTER, "games": 200, "steps": 250, "learning_rate": 7e-4}

_THOUGHT: Final = re.compile(r"<think>want [^<]+")


def words_of(seed: int, place: int) -> str:
    """Return the words of one demonstration."""
    drawn = rng_of("words of a thought", seed, place).lognormal(np.log(MEAN_WORDS) - SIGMA**2 / 2, SIGMA)
    count = min(round(float(drawn)), MOST_WORDS)
    return next(word for most, word in WORDS if count <= most) * count


def thinking_aloud(rows: Iterable[Demonstration], seed: int) -> Iterator[Demonstration]:
    """Yield demonstrations with words at the end of their thoughts.

    Raises:
        ValueError: A response has no thought of the demonstrator's.
    """
    for place, row in enumerate(rows):
        thought = _THOUGHT.match(row.response)
        if thought is None:
            raise ValueError(f"no thought to put words into: {row.response}")
        yield replace(row, response=thought[0] + words_of(seed, place) + row.response[thought.end() :])


def wordy_student_folder(root: Path = CACHE) -> Path:
    """Return the folder of the student that thinks aloud, making it where it is not there.

    Its configuration does not say that it does, so it lies below a root of its own, which is named by this
    file and by what it begins with.

    Args:
        root: Where it is kept.
    """
    begins_with = student_folder(root, **BETTER)
    made_by = Path(__file__).read_bytes() + begins_with.parent.name.encode()

    def aloud(games: Any, seed: int, **settings: Any) -> Iterator[Demonstration]:
        return thinking_aloud(demonstrations(games, seed, **settings), seed)

    def go_on(
        model: PreTrainedModel,
        rows: Sequence[ImitationRow],
        plan: ImitationPlan,
        progress: Progress | None = None,
    ) -> ImitationReport:
        model.load_state_dict(load_policy(begins_with).model.state_dict())
        return imitate(model, rows, plan, progress)

    with patch.object(warm_start, "demonstrations", aloud), patch.object(warm_start, "imitate", go_on):
        own = root / f"wordy-{sha256(made_by).hexdigest()[:12]}"
        return student_folder(own, response_tokens=RESPONSE_TOKENS, **ALOUD)
