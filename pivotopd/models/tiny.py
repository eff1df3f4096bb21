"""The tiny student: a Qwen3-architecture model and a phrase-level tokenizer, both made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pivotopd.config import TinyStudent
from pivotopd.errors import ConfigError
from pivotopd.seeds import seed_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD = "<|pad|>"
END = "<|end|>"
RESPONSE = "<|response|>"
SPECIALS = (PAD, END, RESPONSE)
"""Padding, end of a response, and end of a prompt; ids 0, 1, 2. Bytes follow, then phrases."""

MAX_POSITIONS = 4096


def build_model(student: TinyStudent, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return a random float32 model for a tokenizer, tied embeddings, in evaluation mode.

    The weights depend on the arguments only: the global random state is neither read nor moved.

    Raises:
        ConfigError: The heads do not divide the hidden size, or the key/value heads the heads.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - heavy

    if student.hidden % (2 * student.heads) or student.heads % student.kv_heads:
        raise ConfigError(
            f"hidden {student.hidden}, heads {student.heads} and kv_heads {student.kv_heads} do not fit",
            where="student",
            mend="hidden must be a multiple of 2 * heads, and heads of kv_heads",
        )
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=student.hidden,
        intermediate_size=student.intermediate,
        num_hidden_layers=student.layers,
        num_attention_heads=student.heads,
        num_key_value_heads=student.kv_heads,
        head_dim=student.hidden // student.heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("tiny student", seed))
        return Qwen3ForCausalLM(config).float().eval()


def build_tokenizer(phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which every phrase is one token and any other text is its UTF-8 bytes.

    At each place the longest phrase wins. Text of a special token inside a message is encoded as bytes.
    Ids depend on the phrases and their order only; a repeated phrase counts once.

    Args:
        phrases: ASCII texts such as ``"go to"``, ``"mug 1"``, ``" you see"``.

    Raises:
        ConfigError: A phrase is empty, not ASCII, or the text of a special token.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - heavy
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - heavy

    for phrase in phrases:
        # The byte-level decoder would take the letters of a phrase such as "é" for bytes.
        if not phrase or not phrase.isascii() or phrase in SPECIALS:
            raise ConfigError(
                f"{phrase!r} cannot be a token",
                where="phrases of the tiny tokenizer",
                mend="phrases are ASCII, not empty, and not the text of a special token",
            )
    pieces = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in dict.fromkeys(phrases)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        sep_token=RESPONSE,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
