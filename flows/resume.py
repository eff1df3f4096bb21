"""``pivotopd train --resume`` and ``--fork``: go on with a stored run, or begin another from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pivotopd.errors import first_line

if TYPE_CHECKING:
    from pivotopd.config import RunConfig
    from pivotopd.runs.forks import Fork

_PLACE = frozenset({"name", "root"})
"""Keys that the address of the run has decided."""


def resumed(uri: str, overrides: list[str]) -> RunConfig:
    """Return a stored run's configuration with overrides on top.

    Raises:
        ArtifactError: There is no run at the address.
        ConfigError: An override is not acceptable, or is no override.
    """
    from pivotopd.config_files import apply_overrides
    from pivotopd.errors import ConfigError
    from stages.runs import find_run

    for override in overrides:
        key = override.partition("=")[0]
        if "=" not in override or key in _PLACE:
            raise ConfigError(
                f"{override!r} cannot be given with --resume",
                where="command line",
                mend="the run has its config.yaml, its name and its root; give KEY=VALUE, or --fork NEWNAME",
            )
    config, layout = find_run(uri)
    changed = apply_overrides(config, overrides) if overrides else config
    return changed.model_copy(update={"root": layout.root, "name": layout.run})


def forked(uri: str, config: RunConfig, name: str, first: int | None) -> tuple[RunConfig, Fork]:
    """Return the configuration of a new run, and what it shares with an old one; nothing is written.

    Args:
        uri: Address of the old run.
        config: Its configuration with the overrides of the new one.
        name: Name of the new run.
        first: First iteration of its own; None takes over all that is complete.

    Raises:
        ArtifactError: The old run has not got that far.
        ConfigError: The name is taken or none, or the start is another.
    """
    from contextlib import closing

    from pivotopd.errors import ConfigError
    from stages.fork import plan_fork
    from stages.runs import find_run, named, plan_of
    from stages.work import Work

    new = named(config.model_copy(update={"name": name}))
    old, layout = find_run(uri)
    if name == layout.run:
        raise ConfigError("a fork needs a name of its own", where="--fork", mend="give another name")
    with closing(Work(old, layout)) as work:
        return new, plan_fork(work, plan_of(old, layout), new, first)


def keep(config: RunConfig, fork: Fork) -> None:
    """Write the record of a fork, and what it shares is safe from prunings.

    Raises:
        ConfigError: A run of this name is there already, and is not this fork.
    """
    from pivotopd.artifacts import RunLayout
    from pivotopd.runs.forks import keep_fork

    keep_fork(RunLayout(config.root, config.name or ""), fork)


def say_shared(config: RunConfig, fork: Fork) -> None:
    """Say what a fork takes over, and from where on it goes its own way."""
    shared = f"shares {len(fork.shared)} artifacts of {fork.run} by reference"
    typer.echo(f"{config.name}: {shared}, its own from iteration {fork.iteration}")


def say_other_settings(config: RunConfig) -> None:
    """Say which settings of a run that is there are about to be others, and what that does again."""
    from pivotopd.artifacts import RunLayout
    from pivotopd.errors import ConfigError
    from pivotopd.tracking import flatten
    from stages.runs import find_run, named

    config = named(config)
    layout = RunLayout(config.root, config.name or "")
    if layout.store.read_text(layout.config) is None:
        return
    try:
        before = flatten(find_run(layout.uri)[0].model_dump(mode="json"))
    except ConfigError as error:
        typer.echo(f"{config.name}: its config.yaml cannot be read and is replaced: {first_line(error)}")
        return
    now = flatten(config.model_dump(mode="json"))
    others = [key for key in sorted(before | now) if before.get(key) != now.get(key) and key not in _PLACE]
    if others:
        typer.echo(f"{config.name}: other settings than in its config.yaml: {', '.join(others)}")
        say_redone(config)


def say_redone(config: RunConfig) -> None:
    """Say which published work will be done again, and why, before any of it is done."""
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    from contextlib import closing

    from flows.train import jobs_of
    from pivotopd.artifacts import RunLayout
    from stages.runner import describe
    from stages.runs import plan_of
    from stages.stale import redone
    from stages.work import Work

    layout = RunLayout(config.root, config.name or "")
    with closing(Work(config, layout)) as work:
        found = redone(work, jobs_of(plan_of(config, layout)))
        for one in found:
            made = f"{one.old.digest[:12]} -> {one.job.digest[:12]}"
            typer.echo(f"{describe(one.job):18} will be redone: {made} (other {', '.join(one.why)})")
    if found:
        typer.echo("the old artifacts are kept")
