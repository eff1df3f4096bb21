"""Small random models and tokenizers."""

from __future__ import annotations

import pytest

from pivotopd.config import TinyStudent
from pivotopd.models.checkpoint import Policy, make_policy
from pivotopd.models.tiny import build_model, build_tokenizer

PHRASES = ("go to", " mug 1", " mug", " you see", "take", "\n", " ", "the", "fridge 1", "go to fridge 1")
SMALL = TinyStudent(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48)


def small_policy(seed: int = 0) -> Policy:
    """Return a policy whose sharp weights make tokens differ clearly in probability."""
    tokenizer = build_tokenizer(PHRASES)
    model = build_model(SMALL, tokenizer, seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 8
    return make_policy(model, tokenizer)


@pytest.fixture(scope="session")
def policy() -> Policy:
    return small_policy()
