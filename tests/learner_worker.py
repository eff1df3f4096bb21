"""What the learner's tests run in processes of their own: two ranks, and a resume."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from pivotopd.learner import Learner
from pivotopd.models.checkpoint import load_policy
from tests.learner_cases import CASES, flat, gradient_of, make_rows, policy, section


def gradients(out: Path) -> None:
    found = {case.name: gradient_of(case).numpy() for case in CASES}
    if dist.get_rank() == 0:
        np.savez(out, world=dist.get_world_size(), **found)


def save(folder: Path, stage: int, dtype: str) -> None:
    made = policy(dtype)
    rows = make_rows(made.model)
    with Learner(made, section(zero_stage=stage, dtype=dtype)) as learner:
        learner.update(rows, 1)
        learner.save(folder)


def resume(folder: Path, out: Path, stage: int, dtype: str) -> None:
    rows = make_rows(policy(dtype).model)
    made = load_policy(folder, dtype)
    with Learner(made, section(zero_stage=stage, dtype=dtype)) as learner:
        learner.load(folder)
        learner.update(rows, 2)
        learner.save(folder / "resumed")
    if dist.get_rank() == 0:
        np.save(out, flat(load_policy(folder / "resumed", dtype).model).numpy())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gradients", out]:
            gradients(Path(out))
        case ["save", folder, stage, dtype]:
            save(Path(folder), int(stage), dtype)
        case ["resume", folder, out, stage, dtype]:
            resume(Path(folder), Path(out), int(stage), dtype)
        case _:
            sys.exit(f"unknown arguments {sys.argv[1:]}")
    if dist.get_world_size() > 1:
        os._exit(0)  # as a stage's ranks end: a group that is taken apart can abort its process
