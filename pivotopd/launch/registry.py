"""Launchers by name."""

from __future__ import annotations

from collections.abc import Callable

from pivotopd.artifacts import RunLayout
from pivotopd.errors import ConfigError
from pivotopd.launch.dispatch import Dispatcher
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
    raise ConfigError(f"there is no platform {kind!r}", where="--to", mend="use slurm")
