"""The plan of a run: every stage's job, its digest and its inputs, known before anything is done.

A digest follows from the configuration that a stage reads, its code, and the digests of its inputs. So a
changed recovery setting gives new recover and update jobs and leaves rollout and label as they were, and a
run that was killed finds what it had finished.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pivotopd.artifacts import RunLayout, content_folder
from pivotopd.blobs import sha256_of
from pivotopd.config import PretrainedStudent, RunConfig
from pivotopd.environments.base import Environment
from pivotopd.environments.registry import open_environment
from pivotopd.errors import ArtifactError
from pivotopd.manifest import stage_digest
from pivotopd.methods.base import Needs
from pivotopd.methods.registry import make_method
from pivotopd.provenance import code_digest
from pivotopd.runs.forks import checkpoints_of
from pivotopd.teacher_section import LocalSection, SelfSection
from stages.work import Job, Source

LOOP: Final = ("rollout", "label", "recover", "update")
"""Stages of one iteration, in order."""
_SETTINGS: Final = {".json", ".jinja", ".model", ".txt"}
"""Files of a model folder beside its weights: configuration, generation settings, tokenizer, template."""


@dataclass
class Plan:
    """Jobs of a run.

    Args:
        config: Resolved configuration.
        layout: Where the run lies.
        base: Plan that still holds before ``changed_from``: a rerun of one stage with other settings.
        changed_from: First (iteration, stage) that this plan's own configuration decides.
        shared: A fork's jobs that another run has done, by stage and iteration.
    """

    config: RunConfig
    layout: RunLayout
    base: Plan | None = None
    changed_from: tuple[int, str] = (0, LOOP[0])
    shared: Mapping[tuple[str, int | None], Job] = field(default_factory=dict)
    _jobs: dict[tuple[str, int | None], Job] = field(default_factory=dict)

    @cached_property
    def environment(self) -> Environment:
        """The environment, for the fingerprints of its data."""
        return open_environment(self.config.environment)

    @cached_property
    def needs(self) -> Needs:
        """What the method asks for; ConfigError where it is more than can be kept."""
        needs = make_method(self.config.method, self.config.recovery.depth).needs
        if needs.target_tokens:
            from pivotopd.target_size import check_targets

            check_targets(self.config, needs)
        return needs

    def start(self) -> Source:
        """The start policy: a warm-started student, or a pretrained model folder."""
        if self.base is not None:
            return self.base.start()
        if isinstance(self.config.student, PretrainedStudent):
            return self.pretrained
        return self.warm_start().output

    def warm_start(self) -> Job:
        """The job that makes the tiny student."""
        return self.shared.get(("warm_start", None)) or self.make(
            "warm_start", None, self.layout.warm_start, {}
        )

    @property
    def with_skills(self) -> bool:
        """The method retrieves skills of a bank."""
        return self.needs.skill or self.needs.skill_prompts

    def skills(self) -> Job:
        """The job that makes the skill bank, once a run."""
        if self.base is not None:
            return self.base.skills()
        if ("skills", None) in self.shared:
            return self.shared["skills", None]
        inputs = {"policy": self.start(), "data": self.data(self.config.environment.train_split)}
        return self.make("skills", None, self.layout.skills, inputs | self.teacher_inputs)

    def policy(self, iteration: int) -> Source:
        """The policy that plays an iteration: the start policy, or the previous update's checkpoint."""
        if iteration == 0:
            return self.start()
        for earlier in range(iteration):  # in order, so that no chain of calls grows with the run
            update = self.job("update", earlier)
        return Source(checkpoints_of(update.prefix), update.digest)

    def stages(self) -> tuple[str, ...]:
        """The loop's stages that the method needs, in order."""
        wanted = {"rollout": True, "label": self.needs.labels, "recover": self.needs.recovery_depth > 0}
        return tuple(stage for stage in LOOP if wanted.get(stage, True))

    def job(self, stage: str, iteration: int) -> Job:
        """Return a loop stage's job."""
        if self.base is not None and (iteration, LOOP.index(stage)) < self._change:
            return self.base.job(stage, iteration)
        if (stage, iteration) in self.shared:
            return self.shared[stage, iteration]
        if (stage, iteration) in self._jobs:
            return self._jobs[stage, iteration]
        inputs: dict[str, Source] = {}
        if stage == "rollout":
            inputs = {
                "policy": self.policy(iteration),
                "data": self.data(self.config.environment.train_split),
            }
            if self.needs.skill_prompts:
                inputs["skills"] = self.skills().output
        elif stage == "label":
            inputs = {"rollout": self._output("rollout", iteration), **self.teacher_inputs}
            if isinstance(self.config.teacher, SelfSection):
                inputs["policy"] = self.policy(iteration)
        elif stage == "recover":
            inputs = {
                "policy": self.policy(iteration),
                "rollout": self._output("rollout", iteration),
                "label": self._output("label", iteration),
                **self.teacher_inputs,
            }
        elif stage == "update":
            inputs = {"policy": self.policy(iteration), "reference": self.start()}
            for earlier in self.stages()[:-1]:
                inputs[earlier] = self._output(earlier, iteration)
            inputs |= self._method_inputs(iteration)
        if stage in ("rollout", "update") and iteration and self.needs.depth_probes:
            inputs["depth"] = self._output("update", iteration - 1)
        return self.make(stage, iteration, self.layout.stage(iteration, stage), inputs)

    def _method_inputs(self, iteration: int) -> dict[str, Source]:
        """Return what an update reads beside the iteration's own stages: skills, a larger model."""
        inputs: dict[str, Source] = {}
        if self.needs.skill:
            inputs["skills"] = self.skills().output
            if self.config.method.skill_exploration is not None and iteration > 0:
                inputs["before"] = self._output("update", iteration - 1)
        if self.needs.larger_teacher:
            inputs["teacher"] = self._larger_teacher
        return inputs

    def evaluate(self, iteration: int) -> Job:
        """Return the evaluation of the policy before an iteration; iteration 0 is the start policy's."""
        if ("evaluate", iteration) in self.shared:
            return self.shared["evaluate", iteration]
        inputs = {"policy": self.policy(iteration), "data": self.data(self.config.environment.valid_split)}
        if iteration > 0 and self.config.evaluation.recovery_mistakes:
            inputs["start"] = self.evaluate(0).output
        return self.make("evaluate", iteration, self.layout.stage(iteration, "evaluate"), inputs)

    def evaluated(self, iteration: int) -> bool:
        """Tell whether the policy before an iteration is evaluated."""
        every = self.config.evaluation.every
        return iteration in (0, self.config.iterations) or bool(every and iteration % every == 0)

    @property
    def _change(self) -> tuple[int, int]:
        return self.changed_from[0], LOOP.index(self.changed_from[1])

    @cached_property
    def pretrained(self) -> Source:
        """The model folder, named by all that makes it reply as it does: weights, settings and tokenizer."""
        assert isinstance(self.config.student, PretrainedStudent), "asked for only then"  # noqa: S101
        folder = Path(self.config.student.path)
        if not folder.is_dir():
            raise ArtifactError(
                "no such model folder", where=str(folder), mend="set student.path to a folder of a model"
            )
        return _model_source(content_folder(folder))

    @cached_property
    def teacher_inputs(self) -> dict[str, Source]:
        """The model that teaches in the stages' own process, once it is sure that it can be asked."""
        if not isinstance(self.config.teacher, LocalSection):
            return {}
        from pivotopd.local_teacher import check_local_teacher

        return {"teacher": _model_source(check_local_teacher(self.config.teacher))}

    @cached_property
    def _larger_teacher(self) -> Source:
        """The larger model, once it is sure that it can score the student's tokens."""
        from pivotopd.larger_teacher import check_larger_teacher

        return _model_source(check_larger_teacher(self.config))

    def _output(self, stage: str, iteration: int) -> Source:
        return self.job(stage, iteration).output

    def data(self, split: str) -> Source:
        """Return the games of a split as an input."""
        return Source("", self.environment.data_fingerprint(split))

    def make(self, stage: str, iteration: int | None, prefix: str, inputs: Mapping[str, Source]) -> Job:
        """Return the job of a stage's module with these inputs; its digest follows from what it reads."""
        key = (stage, iteration)
        if key not in self._jobs:
            module = f"stages.{stage}"
            loaded = importlib.import_module(module)
            reads: dict[str, Any] = loaded.reads(self.config)
            code = code_digest(module)
            digest = stage_digest(
                stage,
                config=reads,
                code=code,
                inputs={role: source.digest for role, source in inputs.items()},
                schema_versions={table.TABLE: table.VERSION for table in loaded.TABLES},
                seed=None,
            )
            self._jobs[key] = Job(stage, iteration, prefix, digest, code, reads, inputs)
        return self._jobs[key]


def _model_source(folder: Path) -> Source:
    """Return a model folder as an input, named by its weights, settings and tokenizer."""
    from pivotopd.models.checkpoint import weights_digest

    digest = hashlib.sha256(weights_digest(folder).encode())
    for file in sorted(folder.iterdir()):
        if file.suffix in _SETTINGS and not file.name.endswith(".index.json"):
            digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return Source("", digest.hexdigest(), str(folder))
