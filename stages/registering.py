"""Which checkpoints of a run the model registry hears of, and what their evaluations say."""

from __future__ import annotations

from pathlib import Path

from pivotopd.tracking import Checkpoint, Tracker, model_of
from stages.metrics import metrics_of
from stages.panel import fingerprint, panel_settings
from stages.runner import Done
from stages.work import Work


def enroll(tracker: Tracker, work: Work, done: Done) -> None:
    """Register the checkpoint that a job made or evaluated, and its success, where the run asks for it."""
    model = model_of(work.config)
    if model is None or done.job.stage not in ("update", "evaluate"):
        return
    digest = done.job.digest if done.job.stage == "update" else done.job.inputs["policy"].digest
    checkpoint = _checkpoint(work, digest)
    if checkpoint is None:  # the start policy, or an update that learned nothing and keeps the weights before
        return
    tracker.register(model, checkpoint)
    if done.job.stage == "evaluate":
        games = work.environment.data_fingerprint(work.config.environment.valid_split)
        panel = fingerprint(panel_settings(work.config, games))
        success = metrics_of(done.artifact)["evaluate/success"]
        tracker.judge(model, digest, success=success, panel=panel)


def _checkpoint(work: Work, digest: str) -> Checkpoint | None:
    """Return a checkpoint of the run, or None where the run has none of this digest."""
    artifact = work.store.open_artifact(work.layout.checkpoints, digest)
    if artifact is None or artifact.pruned() is not None:
        return None
    folder = next(file.path for file in artifact.manifest.files if file.kind == "content").partition("/")[0]
    source = f"{artifact.uri}/{folder}"
    if work.store.blobs.local_root is not None:
        source = str(Path(source).absolute())
    return Checkpoint(
        digest,
        artifact.manifest.content_digest,
        source,
        work.layout.uri,
        artifact.manifest.iteration or 0,
    )
