"""Seeds: every random draw comes from a key such as (run seed, iteration, task, sample)."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(*key: str | int) -> int:
    """Return a 63-bit seed made of a key.

    The parts are length-prefixed before hashing, so ``("a", "bc")`` and ``("ab", "c")`` differ.

    Args:
        *key: The parts that name the draw, from the run's seed to its purpose.

    Returns:
        A non-negative integer below 2**63, the same in every process.
    """
    digest = hashlib.sha256()
    for part in key:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def rng_of(*key: str | int) -> np.random.Generator:
    """Return a NumPy generator seeded by :func:`seed_of` of the key."""
    return np.random.Generator(np.random.Philox(seed_of(*key)))
