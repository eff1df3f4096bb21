"""What an iteration's newest result was made of: its artifacts, followed back by their manifests.

Unlike a plan this does not ask what the present code and configuration would make, so it also reads runs of
other versions.
"""

from __future__ import annotations

from pivotopd.artifacts import Artifact, RunLayout, list_artifacts
from stages.plan import LOOP


def lineage(layout: RunLayout, iteration: int) -> dict[str, Artifact]:
    """Return an iteration's artifacts by stage: the newest of its latest stage, and what that one read.

    Args:
        layout: The run.
        iteration: Training iteration.

    Returns:
        Stage to artifact; empty where the iteration has none.
    """
    found: dict[str, list[Artifact]] = {stage: [] for stage in LOOP}
    for artifact in list_artifacts(layout.store, layout.stage(iteration, "").rstrip("/")):
        if artifact.manifest.stage in found:
            found[artifact.manifest.stage].append(artifact)
    chosen: dict[str, Artifact] = {}
    for stage in reversed(LOOP):
        wanted = {made.manifest.inputs.get(stage) for made in chosen.values()} - {None}
        candidates = [one for one in found[stage] if not chosen or one.digest in wanted]
        if candidates:
            chosen[stage] = max(candidates, key=lambda one: one.manifest.created_at)
    return chosen
