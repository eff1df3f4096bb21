"""Demonstrations that think aloud: lengths of the wanted spread, and nothing else is new."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from benchmarks.wordy import MOST_WORDS, RESPONSE_TOKENS, WORDS, thinking_aloud, words_of
from pivotopd.environments.alfworld.demonstrations import Demonstration, demonstrations
from pivotopd.environments.alfworld.generator import PLAIN, TRAIN_SPLIT, generate_games
from pivotopd.environments.alfworld.wording import make_wording, phrases
from pivotopd.environments.base import View
from pivotopd.models.codec import TokenizerCodec
from pivotopd.models.tiny import build_tokenizer


@pytest.fixture(scope="module")
def codec() -> TokenizerCodec:
    return TokenizerCodec(build_tokenizer(phrases()))


def lengths(codec: TokenizerCodec, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([len(codec.encode_response(words_of(0, place))) - 1 for place in range(count)])


def test_lengths_are_lognormal(codec: TokenizerCodec) -> None:
    words = lengths(codec, 2000)
    # Of a lognormal with mean 45 and sigma 1: median 45 / e^0.5 = 27.3, 16 % of it below 10 and above 74.
    assert np.median(words) == pytest.approx(27.3, abs=2.5)
    assert (words < 10).mean() == pytest.approx(0.16, abs=0.03)
    assert (words > 74).mean() == pytest.approx(0.16, abs=0.03)
    assert words.max() == MOST_WORDS < RESPONSE_TOKENS


def test_a_word_is_one_token_and_says_how_many_follow(codec: TokenizerCodec) -> None:
    for place in range(200):
        text = words_of(7, place)
        ids = codec.encode_response(text)[:-1]
        assert len(set(ids)) <= 1
        word = next(word for most, word in WORDS if len(ids) <= most)
        assert text == word * len(ids)
    assert [words_of(7, place) for place in range(9)] != [words_of(8, place) for place in range(9)]


def test_only_the_thought_grows(codec: TokenizerCodec) -> None:
    games = generate_games(3, TRAIN_SPLIT, 2, ("pick_and_place_simple",), PLAIN)
    plain = list(islice(demonstrations(games, 0, hinted_share=0.5, history=3, max_turns=8), 12))
    aloud = list(thinking_aloud(plain, 5))
    wording = make_wording("compact")
    assert [one.view for one in aloud] == [one.view for one in plain]
    for place, (short, long) in enumerate(zip(plain, aloud, strict=True)):
        before, after = wording.parse(short.response), wording.parse(long.response)
        assert after.valid
        assert after.action == before.action
        assert after.thought == (before.thought + words_of(5, place)).strip()
        more = len(codec.encode_response(long.response)) - len(codec.encode_response(short.response))
        assert more == len(codec.encode_response(words_of(5, place))) - 1


def test_a_response_without_a_thought_is_refused() -> None:
    row = Demonstration(View("look", (), 0, "", ()), "<action>look</action>", hinted=False)
    with pytest.raises(ValueError, match="no thought"):
        list(thinking_aloud([row], 0))
