"""Checkpoints as versions of an MLflow model: ``candidate`` is the newest, ``champion`` the best evaluated.

A version refers to the checkpoint's address in the store; nothing is uploaded a second time. Every step looks
first at what is there, so that a run that goes on after a crash registers and promotes nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pivotopd.tracking import Checkpoint

if TYPE_CHECKING:
    from mlflow import MlflowClient

CANDIDATE = "candidate"
CHAMPION = "champion"
CHECKPOINT_TAG = "pivotopd.checkpoint"
SUCCESS_TAG = "pivotopd.success"
"""Followed by a panel's fingerprint: the version's success there."""
_FINGERPRINT_CHARACTERS = 16


def register_version(client: MlflowClient, model: str, checkpoint: Checkpoint, run_id: str) -> None:
    """Make a checkpoint a version of a model, unless it is one, and the newest version the candidate.

    Args:
        client: MLflow's client.
        model: Name of the registered model; made where there is none.
        checkpoint: The checkpoint.
        run_id: MLflow's id of the training run.
    """
    _ensure_model(client, model)
    if not _versions(client, model, checkpoint.digest):
        client.create_model_version(
            model,
            checkpoint.source,
            run_id=run_id,
            tags={
                CHECKPOINT_TAG: checkpoint.digest,
                "pivotopd.content": checkpoint.content_digest,
                "pivotopd.run_uri": checkpoint.run_uri,
                "pivotopd.iteration": str(checkpoint.iteration),
            },
        )
    newest = max(int(one.version) for one in client.search_model_versions(f"name = '{model}'"))
    if _alias(client, model, CANDIDATE) != str(newest):
        client.set_registered_model_alias(model, CANDIDATE, str(newest))


def judge_version(client: MlflowClient, model: str, digest: str, success: float, panel: str) -> None:
    """Note a checkpoint's success on a panel, and promote the best version there if it beats the champion.

    Without a champion the best of those judged is it, of several the oldest. A tie keeps the champion, and so
    does a panel on which the champion was never measured. A checkpoint that is no version is left alone. All
    versions are looked at, not this one alone: what two runs that judged at once left is mended by the next.

    Args:
        client: MLflow's client.
        model: Name of the registered model.
        digest: Digest of the checkpoint.
        success: Share of episodes won.
        panel: Fingerprint of the panel.
    """
    tag = f"{SUCCESS_TAG}.{panel[:_FINGERPRINT_CHARACTERS]}"
    versions = _versions(client, model, digest)
    if not versions:
        return
    for version in versions:
        client.set_model_version_tag(model, version.version, tag, repr(success))
    successes = {
        int(version.version): float(version.tags[tag])
        for version in client.search_model_versions(f"name = '{model}'")
        if tag in version.tags
    }
    champion = _alias(client, model, CHAMPION)
    if champion is not None and int(champion) not in successes:
        return
    best = max(sorted(successes), key=successes.__getitem__)
    if champion is None or successes[best] > successes[int(champion)]:
        client.set_registered_model_alias(model, CHAMPION, str(best))


def _ensure_model(client: MlflowClient, model: str) -> None:
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - slow to import

    try:
        client.create_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _versions(client: MlflowClient, model: str, digest: str) -> Sequence[Any]:
    found: Sequence[Any] = client.search_model_versions(
        f"name = '{model}' and tags.`{CHECKPOINT_TAG}` = '{digest}'"
    )
    return found


def _alias(client: MlflowClient, model: str, alias: str) -> str | None:
    version = client.get_registered_model(model).aliases.get(alias)
    return None if version is None else str(version)
