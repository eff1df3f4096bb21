"""A small student for the tests of stages and flows: it replies well-formed, wins at times and errs at times.

It is made once and kept under ``.cache/tests``, by the digest of the code that makes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

from pivotopd.config import GeneratedGames, RunConfig
from pivotopd.provenance import code_digest

ROOT = Path(__file__).resolve().parent.parent
STEPS = 450
TASK_TYPES = ("pick_and_place_simple",)
GAMES = GeneratedGames(train=4, valid=4, task_types=TASK_TYPES)
"""The games that the tests play. The student has seen those of the train split, so it wins some of them."""
PLAYS = 24
"""Demonstrations of each of them."""


def small_student(skilled_share: float = 0.0) -> Path:
    """Return the student's folder; of several processes one makes it and the others wait.

    Args:
        skilled_share: Share of its demonstrations with skills in the prompt.
    """
    made_by = f"{code_digest('pivotopd.warm_start')} {Path(__file__).read_text()} {skilled_share}"
    key = sha256(made_by.encode()).hexdigest()[:16]
    folder = ROOT / ".cache" / "tests" / f"student-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "student.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            half = folder.with_name(f"half-{os.getpid()}")
            shutil.rmtree(half, ignore_errors=True)
            _make(half, skilled_share)
            half.rename(folder)
    return folder


def _make(folder: Path, skilled_share: float) -> None:
    import numpy as np

    from pivotopd.config import TinyStudent
    from pivotopd.environments.alfworld.demonstrations import demonstrations
    from pivotopd.environments.alfworld.generator import PLAIN, TRAIN_SPLIT, generate_games
    from pivotopd.environments.alfworld.skill_demonstrations import with_made_up_skills
    from pivotopd.environments.alfworld.wording import make_wording, phrases
    from pivotopd.imitation import ImitationPlan, ImitationRow, imitate
    from pivotopd.models.checkpoint import make_policy, save_policy
    from pivotopd.models.tiny import build_model, build_tokenizer

    tokenizer, wording = build_tokenizer(phrases()), make_wording("compact")
    student = TinyStudent(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=128)
    policy = make_policy(build_model(student, tokenizer, 0), tokenizer)
    games = generate_games(GAMES.seed, TRAIN_SPLIT, GAMES.train, TASK_TYPES, PLAIN)
    rows = [
        ImitationRow(
            np.array(policy.codec.encode_prompt(wording.prompt(one.view)), dtype=np.int32),
            np.array(policy.codec.encode_response(one.response), dtype=np.int32),
        )
        for seed in range(PLAYS)
        for one in with_made_up_skills(
            demonstrations(games, seed, hinted_share=0.25, history=3, max_turns=12), seed, skilled_share
        )
    ]
    imitate(policy.model, rows, ImitationPlan(STEPS, 16, 1e-2, 0.0, 0))
    save_policy(policy, folder)


def small_config(root: Path | str, student: Path, **changes: object) -> RunConfig:
    """Return the smallest run that has something to train on in every iteration.

    Args:
        root: Storage root: a folder or an address.
        student: Folder of :func:`small_student`.
        **changes: Sections or keys that differ; ``update__dtype=...`` for a key of a section.
    """
    data: dict[str, Any] = {
        "name": "small",
        "root": str(root),
        "iterations": 2,
        "environment": {"prompt": "compact", "max_turns": 10, "history": 3, "generated": GAMES.model_dump()},
        "student": {"kind": "pretrained", "path": str(student)},
        "rollout": {"tasks": 2, "group_size": 3, "prompt_tokens": 256, "response_tokens": 48},
        "recovery": {"depth": 1, "limit": 4},
        "skills": {"episodes": 12, "entries": 9},
        "update": {"learning_rate": 1e-4, "mini_batch_rows": 32, "micro_batch_tokens": 1024},
        "evaluation": {"every": 0, "tasks": 1, "recovery_mistakes": 1, "recovery_replays": 1},
    }
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (data.setdefault(section, {}) if section else data)[name] = value
    return RunConfig.model_validate(data)
