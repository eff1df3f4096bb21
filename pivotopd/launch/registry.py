"""Launchers by name."""

from __future__ import annotations

from collections.abc import Callable

from pivotopd.artifacts import RunLayout, cache_folder
from pivotopd.errors import ConfigError
from pivotopd.launch.dispatch import Dispatcher
from pivotopd.launch.kubernetes import KubernetesLauncher
from pivotopd.launch.records import Records
from pivotopd.launch.section import LaunchSection
from pivotopd.launch.slurm import Slurm


def make_dispatcher(
    kind: str, section: LaunchSection, layout: RunLayout, say: Callable[[str], None]
) -> Dispatcher:
    """Return what submits the jobs of a run to a platform.

    Args:
        kind: Name of the platform.
        section: Settings of all platforms.
        layout: The run.
        say: Takes one line for the user.

    Raises:
        ConfigError: There is no such platform.
    """
    if kind == "slurm":
        slurm = section.slurm
        return Dispatcher(
            Slurm(slurm),
            Records(layout, slurm.folder),
            say,
            poll_s=slurm.poll_s,
            patience_s=slurm.patience_s,
            vanished_s=slurm.vanished_s,
        )
    if kind == "kubernetes":
        cluster = section.kubernetes
        return Dispatcher(
            KubernetesLauncher(cluster),
            Records(layout, _log_folder(section, layout)),
            say,
            poll_s=cluster.poll_s,
            patience_s=cluster.patience_s,
            vanished_s=cluster.vanished_s,
        )
    raise ConfigError(f"there is no platform {kind!r}", where="--to", mend="use slurm or kubernetes")


def _log_folder(section: LaunchSection, layout: RunLayout) -> str | None:
    """Return where logs of pods are kept on this machine: beside the run, or in the user's cache."""
    if section.kubernetes.folder is not None or layout.store.blobs.local_root is not None:
        return section.kubernetes.folder
    return str(cache_folder() / "jobs")
