"""Open a run: name it, keep its resolved configuration, or find it again by its address."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence

from pivotopd.artifacts import RESERVED, RunLayout
from pivotopd.config import RunConfig
from pivotopd.config_files import apply_overrides, dump_config, parse_config, parse_yaml
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.manifest import canonical_json
from pivotopd.progress import Progress, silent
from pivotopd.prompt_check import check_prompts
from pivotopd.run_identity import identity_of
from pivotopd.runs.forks import fork_of
from stages.fork import jobs_shared
from stages.plan import LOOP, Plan
from stages.work import Work

RUN_NAME = re.compile(r"[^./\\:][^/\\:]{0,99}")
"""A run's name: no separators, which are a path's or an address's, and no hidden folder."""


def named(config: RunConfig) -> RunConfig:
    """Return the configuration with a run name; one is made of what the run is where none is given.

    Raises:
        ConfigError: The name or the root cannot be a folder's.
    """
    if not config.root.strip() or not config.root.isprintable():
        raise ConfigError(
            f"{config.root!r} cannot be a storage root", where="root", mend="give a folder or an fsspec URI"
        )
    name = config.name
    if name is not None:
        if not RUN_NAME.fullmatch(name) or not name.isprintable() or name in RESERVED or name != name.strip():
            raise ConfigError(
                f"{name!r} cannot be a run's name",
                where="name",
                mend="use letters, digits and dashes, at most 100; it becomes a folder's name",
            )
        return config
    identity = identity_of(config.model_dump(mode="json"))
    digest = hashlib.sha256(canonical_json(identity).encode()).hexdigest()
    name = f"{config.environment.name}-{config.method.name}-seed{config.seed}-{digest[:8]}"
    return config.model_copy(update={"name": name})


def open_run(config: RunConfig, progress: Progress = silent) -> tuple[Work, Plan]:
    """Return the work and plan of a run; write its resolved configuration and what its templates do.

    Raises:
        ConfigError: The name cannot be a folder's, or a model's chat template gives no reproducible prompts.
        ArtifactError: A model folder is missing, or its tokenizer is.
        StorageError: The store cannot be written.
    """
    config = named(config)
    layout = RunLayout(config.root, config.name or "")
    prompts = check_prompts(config)
    layout.store.write_text(layout.config, dump_config(config))
    layout.store.write_text(layout.templates, json.dumps(prompts.values, indent=2) + "\n")
    return Work(config, layout, progress), plan_of(config, layout)


def plan_of(config: RunConfig, layout: RunLayout) -> Plan:
    """Return the plan of a run; a fork's has the jobs that it shares with the run it comes from.

    Raises:
        ArtifactError: The record of the fork is damaged, or a shared artifact does not exist.
    """
    fork = fork_of(layout)
    shared = jobs_shared(layout.store, fork) if fork is not None else {}
    return Plan(config, layout, shared=shared)


def find_run(uri: str) -> tuple[RunConfig, RunLayout]:
    """Return a run's configuration by its address ``ROOT/NAME``.

    Raises:
        ArtifactError: There is no run.
        ConfigError: Its configuration is not one that this version reads, or is of a run of another name.
    """
    layout = RunLayout.from_uri(uri)
    text = layout.store.read_text(layout.config)
    if text is None:
        raise ArtifactError(
            "there is no run at this address",
            where=uri or "''",
            mend="give ROOT/NAME, where config.yaml lies",
        )
    where = layout.store.join(layout.config)
    config = parse_config(parse_yaml(text, where=where), where=where)
    if config.name not in (None, layout.run):
        raise ConfigError(
            f"this is run {config.name!r} under another name, with which none of its artifacts is found",
            where=layout.uri,
            mend=f"rename the folder to {config.name!r}, or begin a run of a new name: "
            "`pivotopd train --resume ROOT/OLDNAME --fork NEWNAME`",
        )
    return config.model_copy(update={"root": layout.root, "name": layout.run}), layout


def rerun(
    uri: str, stage: str, iteration: int | None, overrides: Sequence[str], progress: Progress = silent
) -> tuple[Work, Plan]:
    """Return the work and plan of a stage's rerun: overrides hold from that stage on, not before.

    Raises:
        ConfigError: The stage is unknown or an override is not acceptable.
    """
    config, layout = find_run(uri)
    base = plan_of(config, layout)
    if not overrides:
        return Work(config, layout, progress), base
    changed = apply_overrides(config, overrides).model_copy(update={"root": layout.root, "name": layout.run})
    work = Work(changed, layout, progress)
    if stage in ("warm_start", "skills"):
        return work, Plan(changed, layout)
    first = (iteration, stage) if stage in LOOP and iteration is not None else (sys.maxsize, LOOP[0])
    return work, Plan(changed, layout, base=base, changed_from=first)


def updates_done(work: Work, plan: Plan) -> int:
    """Return how many updates of a run are published, counted from the first."""
    count = 0
    while work.find(plan.job("update", count)) is not None:
        count += 1
    return count
