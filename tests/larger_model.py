"""A model with more layers than the small student's and the student's tokenizer; its weights are random."""

from __future__ import annotations

from pathlib import Path

from pivotopd.config import TinyStudent
from pivotopd.models.checkpoint import load_policy, make_policy, save_policy
from pivotopd.models.tiny import build_model


def make_larger_model(folder: Path, student: Path) -> Path:
    """Write the model to a folder and return it."""
    tokenizer = load_policy(student).tokenizer
    shape = TinyStudent(layers=3, hidden=64, heads=4, kv_heads=2, intermediate=128)
    save_policy(make_policy(build_model(shape, tokenizer, 7), tokenizer), folder)
    return folder
