"""The experiment file: arms and seeds of a comparison, and the configuration of each of its runs.

An arm is a label with settings, not only a method: ``recovery_only`` is PivotOPD with two weights at zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pivotopd.config import RunConfig
from pivotopd.config_files import load_config, parse_section, read_yaml
from pivotopd.errors import ConfigError
from pivotopd.section import Section, Share

START = "start"
"""The reference that stands for the policy before training."""
_OWN_KEYS = frozenset({"name", "seed"})
"""Keys of a run that the comparison itself sets."""
_SHARED_KEYS = frozenset({"root", "tracking", "threads", "streaming"})
"""Keys that all runs share: a method cannot set them."""
_LABEL = r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,59}"


def _as_overrides(value: Any) -> Any:
    """Read settings given as a mapping of dotted keys as the list of ``key=value`` that they stand for."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple(f"{key}={json.dumps(item)}" for key, item in value.items())
    return value


Overrides = Annotated[tuple[str, ...], BeforeValidator(_as_overrides)]


class Thresholds(Section):
    """Levels whose first evaluated iteration is reported."""

    recovery: Share | None = 0.5
    """Recovery rate; null reports none."""
    success: Share | None = None
    """Mean success over task types; null reports none."""


class Experiment(Section):
    """A comparison: every arm with every seed."""

    name: Annotated[str, Field(pattern=f"^{_LABEL}$")]
    """Name of the comparison; its report lies in ROOT/comparisons/NAME."""
    base: str
    """Configuration file of all runs, relative to this file."""
    overrides: Overrides = ()
    """Settings of all runs that differ from it: a list of `key=value`, or a mapping of dotted keys."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    """Seeds of each arm."""
    methods: Annotated[dict[Annotated[str, Field(pattern=f"^{_LABEL}$")], Overrides], Field(min_length=1)]
    """Arms: label to settings, as in `overrides`; an empty mapping is the base itself."""
    reference: str = START
    """What improved and worsened compare with: `start`, the policy before training, or an arm."""
    thresholds: Thresholds = Thresholds()
    """Levels whose first evaluated iteration is reported."""

    @field_validator("seeds")
    @classmethod
    def _once(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a seed is given twice")
        return value

    @model_validator(mode="after")
    def _reference_is_known(self) -> Experiment:
        if START in self.methods:
            raise ValueError(f"{START!r} is the policy before training and cannot be an arm's label")
        if self.reference not in {START, *self.methods}:
            raise ValueError(f"reference {self.reference!r} is neither {START!r} nor one of the arms")
        return self


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison.

    Attributes:
        arm: Label of its arm.
        seed: Its seed.
        config: Its whole configuration; the name is left to what the run is.
    """

    arm: str
    seed: int
    config: RunConfig

    @property
    def label(self) -> str:
        """The cell for people and file names."""
        return f"{self.arm}-seed{self.seed}"


def load_experiment(path: str | Path) -> Experiment:
    """Read an experiment file.

    Raises:
        ConfigError: It cannot be read, or a key or value is not acceptable; all problems are named.
    """
    return parse_section(
        Experiment,
        read_yaml(Path(path)),
        where=str(path),
        mend="see docs/comparison.md for an experiment's keys",
    )


def cells_of(experiment: Experiment, path: str | Path) -> list[Cell]:
    """Return the runs of an experiment, arm by arm.

    Args:
        experiment: The experiment.
        path: The file it was read from; ``base`` is relative to it.

    Raises:
        ConfigError: A run's configuration is not acceptable, or an arm sets what all runs share.
    """
    _refuse(experiment.overrides, _OWN_KEYS, f"{path}: overrides")
    for arm, overrides in experiment.methods.items():
        _refuse(overrides, _OWN_KEYS | _SHARED_KEYS, f"{path}: methods.{arm}")
    return list(_cells(experiment, Path(path).parent / experiment.base, path))


def _cells(experiment: Experiment, base: Path, path: str | Path) -> Iterator[Cell]:
    for arm, overrides in experiment.methods.items():
        for seed in experiment.seeds:
            try:
                config = load_config(base, [*experiment.overrides, *overrides, f"seed={seed}"])
            except ConfigError as error:
                where = f"{path}: arm {arm!r}, {error.where}"
                raise ConfigError(error.what, where=where, mend=error.mend) from error
            yield Cell(arm, seed, config.model_copy(update={"name": None}))


def _refuse(overrides: tuple[str, ...], keys: frozenset[str], where: str) -> None:
    """Refuse settings that are not an arm's to make."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key.partition(".")[0] in keys:
            raise ConfigError(
                f"{key!r} cannot be set here",
                where=where,
                mend="runs name themselves, seeds stand in `seeds`, and what all runs share (root, tracking, "
                "threads) stands in `overrides` or in the base",
            )
