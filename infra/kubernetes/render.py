"""Write the Jobs of ``infra/kubernetes/jobs``: one a stage, one for a whole training, a JobSet for two nodes.

They are what ``pivotopd submit --to kubernetes`` would hand over, with placeholders that overlays fill in.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from pivotopd.launch.base import Needed, Task
from pivotopd.launch.kubernetes_manifests import FILES, Placement, as_yaml, manifests
from pivotopd.launch.kubernetes_section import KubernetesSection

FOLDER = Path(__file__).resolve().parent / "jobs"
STAGES = ("rollout", "label", "recover", "update", "evaluate")
IMAGE = "pivotopd"
"""Overlays say which image this name stands for."""
RUN, ITERATION = "RUN", "ITERATION"
"""Arguments that overlays replace."""
HEAD = "# Written by: python infra/kubernetes/render.py\n"


def tasks() -> list[Task]:
    """Return the jobs, those of stages with the run and the iteration as placeholders."""
    needed = Needed(image=IMAGE)
    jobs = [
        Task(stage, "", ("-m", f"stages.{stage}", "--run", RUN, "--iteration", ITERATION), needed)
        for stage in STAGES
    ]
    update = jobs[STAGES.index("update")]
    return [
        Task("train", "", ("-m", "flows.cli", "train", f"{FILES}/config.yaml"), needed),
        *jobs,
        replace(update, name="update-nodes", resources=replace(needed, nodes=2)),
    ]


def page(task: Task) -> str:
    """Return the file of a job; its name is the task's own, so that overlays can name it."""
    placement = Placement(task, KubernetesSection(), task.name)
    text = as_yaml(manifests(placement)).replace(placement.name, task.name)
    return HEAD + text


def main() -> int:
    """Write all files."""
    for task in tasks():
        (FOLDER / f"{task.name}.yaml").write_text(page(task), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
