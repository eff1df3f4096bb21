"""What the learner's tests run in processes of their own: two ranks, and a resume."""

from __future__ import annotations

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


def save_two_ranks(folder: Path) -> None:
    made = policy()
    with Learner(made, section()) as learner:
        learner.update(make_rows(made.model), 1)
        learner.save(folder)


def resume(folder: Path, out: Path, stage: int, dtype: str) -> None:
    rows = make_rows(policy(dtype).model)
    made = load_policy(folder, dtype)
    with Learner(made, section(zero_stage=stage, dtype=dtype)) as learner:
        learner.load(folder)
        learner.update(rows, 2)
    np.save(out, flat(made.model).numpy())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gradients", out, folder]:
            gradients(Path(out))
            save_two_ranks(Path(folder))
        case ["resume", folder, out, stage, dtype]:
            resume(Path(folder), Path(out), int(stage), dtype)
        case _:
            sys.exit(f"unknown arguments {sys.argv[1:]}")
