"""Which policy a server begins with, which teacher one holds, and with which settings they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pivotopd.artifacts import RunLayout, content_folder
from pivotopd.config import RunConfig
from pivotopd.config_files import apply_overrides, load_config
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.local_teacher import start_teacher
from pivotopd.models.checkpoint import load_policy
from pivotopd.models.devices import put_on_device
from pivotopd.models.engines import start_vllm, vllm_runs
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.services.server import EngineServer
from pivotopd.teacher_section import LocalSection
from pivotopd.threads import set_threads
from stages.plan import Plan
from stages.runs import find_run, named, rerun, updates_done
from stages.work import longest_tokens


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy to serve.

    Attributes:
        config: Settings; their addresses of servers are not used.
        folder: Its model folder.
        digest: Digest of the work that made it, as a run names it.
    """

    config: RunConfig
    folder: Path
    digest: str

    def start(self) -> EngineServer:
        """Start the engine that the settings ask for, and return its server.

        Raises:
            ConfigError: The engine cannot run the model with these settings.
            ArtifactError: The folder is damaged.
        """
        config, dtype = self.config, self.config.update.dtype
        set_threads(config.threads)
        if vllm_runs(config.engine, self.folder):
            tokens = longest_tokens(config)
            vllm = start_vllm(config.engine, self.folder, self.digest, dtype=dtype, max_tokens=tokens)
            return EngineServer(vllm, "vllm", dtype)
        policy = load_policy(self.folder, dtype)
        put_on_device(policy.model)
        rows = config.rollout.batch_episodes
        engine = TransformersEngine(policy, config.update.micro_batch_tokens, rows, self.digest)
        return EngineServer(engine, "transformers", dtype)


@dataclass(frozen=True, slots=True)
class ServedTeacher:
    """A teacher to serve.

    Attributes:
        config: Settings.
        section: The teacher's; its addresses of servers are not used.
        digest: Digest of its folder's content, as a run names it.
    """

    config: RunConfig
    section: LocalSection
    digest: str

    def start(self) -> EngineServer:
        """Start the engine that the settings ask for, and return its server.

        Raises:
            ConfigError: The engine is not installed or cannot run the model with these settings.
            ArtifactError: The folder is damaged.
        """
        set_threads(self.config.threads)
        budget = self.config.update.micro_batch_tokens
        engine = start_teacher(self.section, self.digest, token_budget=budget)
        return EngineServer(engine, self.section.engine, self.section.dtype, "teacher")


def served_policy(
    subject: str, iteration: int | None, file: str | None, overrides: Sequence[str]
) -> ServedPolicy:
    """Return the policy of a model folder or of a run.

    Args:
        subject: Model folder, or address of a run.
        iteration: Updates behind a run's policy; None takes the last one.
        file: Configuration for a model folder; None takes the defaults.
        overrides: Settings that differ.

    Raises:
        ArtifactError: There is neither, or the run has fewer updates.
        ConfigError: A setting is not acceptable, or an option does not fit the subject.
    """
    folder = content_folder(Path(subject))
    if (folder / "config.json").is_file():
        if iteration:
            raise ConfigError("a model folder has no iterations", where="--iteration", mend="leave it out")
        config = _with_folder(file, overrides, "student.kind=pretrained", "student.path", folder)
        source = Plan(config, RunLayout(config.root, config.name or "")).pretrained
        return ServedPolicy(config, folder, source.digest)
    _refuse_file(file)
    work, plan = rerun(subject, "evaluate", None, overrides)
    finished = updates_done(work, plan)
    chosen = finished if iteration is None else iteration
    if chosen > finished:
        raise ArtifactError(
            f"the run has {finished} updates, not {chosen}",
            where=subject,
            mend="train it further, or give a smaller --iteration",
        )
    source = plan.policy(chosen)
    return ServedPolicy(work.config, work.policy_folder(source), source.digest)


def served_teacher(subject: str, file: str | None, overrides: Sequence[str]) -> ServedTeacher:
    """Return a model folder as a teacher, or the local teacher of a run.

    Args:
        subject: Model folder, or address of a run.
        file: Configuration for a model folder; None takes the defaults.
        overrides: Settings that differ.

    Raises:
        ArtifactError: There is neither.
        ConfigError: A setting is not acceptable, the run's teacher is no model folder, or its longest prompt
            and reply do not fit the model.
    """
    folder = content_folder(Path(subject))
    if (folder / "config.json").is_file():
        config = _with_folder(file, overrides, "teacher.kind=local", "teacher.path", folder)
    else:
        _refuse_file(file)
        found, layout = find_run(subject)
        config = apply_overrides(found, overrides).model_copy(update={"name": layout.run})
    section = config.teacher
    if not isinstance(section, LocalSection):
        raise ConfigError(
            f"the run's teacher is of kind {section.kind}, which is no model in a folder",
            where=subject,
            mend="give the teacher's model folder, and --config with the run's settings",
        )
    source = Plan(config, RunLayout(config.root, config.name or "")).teacher_inputs["teacher"]
    return ServedTeacher(config, section, source.digest)


def _with_folder(file: str | None, overrides: Sequence[str], kind: str, key: str, folder: Path) -> RunConfig:
    """Return settings with a model folder at a key, whatever they had there."""
    path = json.dumps(str(folder.resolve()))  # quoted as YAML reads it
    return named(load_config(file, [*overrides, kind, f"{key}={path}"]))


def _refuse_file(file: str | None) -> None:
    if file is not None:
        raise ConfigError("a run has its own settings", where="--config", mend="leave it out")
