from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.config import TinyStudent
from pivotopd.errors import ConfigError
from pivotopd.models.checkpoint import weights_digest
from pivotopd.models.tiny import END, PAD, RESPONSE, build_model, build_tokenizer
from tests.models.conftest import PHRASES, SMALL

TOKENIZER = build_tokenizer(PHRASES)
MIXED = st.lists(st.sampled_from([*PHRASES, END, PAD, RESPONSE, "é", "☃"]) | st.text(max_size=5)).map("".join)


@given(MIXED)
def test_any_text_survives(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(ids) == text
    assert not {TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.sep_token_id} & set(ids)


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_one_token(phrase: str) -> None:
    assert len(TOKENIZER(phrase)["input_ids"]) == 1


def test_longest_phrase_wins() -> None:
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER("go to fridge 1 mug 12")["input_ids"]) == [
        "go to fridge 1",
        " mug 1",
        "2",
    ]


def test_ids_are_fixed() -> None:
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.sep_token_id) == (0, 1, 2)
    first = 3 + 256
    assert [TOKENIZER(phrase)["input_ids"][0] for phrase in PHRASES] == [
        first + index for index in range(len(PHRASES))
    ]
    assert len(build_tokenizer([*PHRASES, *PHRASES])) == len(TOKENIZER) == first + len(PHRASES)


def test_loads_again_through_auto(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    text = f"go to fridge 1{END}é☃ the mug 1\n"
    assert loaded(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert loaded.special_tokens_map == TOKENIZER.special_tokens_map
    assert loaded.chat_template is None


@pytest.mark.parametrize("phrase", ["", "é", END])
def test_bad_phrases_are_refused(phrase: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a token"):
        build_tokenizer([phrase])


def test_weights_depend_on_the_seed_only() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = weights_digest(build_model(SMALL, TOKENIZER, 3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert weights_digest(build_model(SMALL, TOKENIZER, 3)) == first
    assert weights_digest(build_model(SMALL, TOKENIZER, 4)) != first


def test_shape_of_the_default_student() -> None:
    model = build_model(TinyStudent(), TOKENIZER, 0)
    # By hand: per layer q, o 128*128 each; k, v 128*64 each; MLP 3*128*384; norms 2*128 + 2*32.
    layer = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384 + 2 * 128 + 2 * 32
    assert sum(p.numel() for p in model.parameters()) == 2 * layer + 128 + len(TOKENIZER) * 128
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training


def test_heads_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        build_model(TinyStudent(hidden=30, heads=4), TOKENIZER, 0)
