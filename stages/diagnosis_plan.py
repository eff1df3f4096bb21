"""The jobs of a diagnosis: one a part, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pivotopd.artifacts import artifact_at
from pivotopd.config import SelfSection
from stages.plan import Plan
from stages.work import Job, Source

PARTS: Final = ("diagnose", "recovery_check", "intervene", "agreement", "probabilities")
"""Stages whose figures the report holds, in its order."""
STAGES: Final = (*PARTS, "mistakes", "diagnosis_report")


@dataclass(frozen=True)
class DiagnosisPlan:
    """Names the jobs of a diagnosis of any policy of a run.

    Args:
        plan: The run's plan; its configuration decides the diagnosis, its policies are diagnosed.
    """

    plan: Plan

    @property
    def split(self) -> str:
        """Split that is played."""
        config = self.plan.config
        return config.diagnosis.split or config.environment.valid_split

    def jobs(self, iteration: int) -> list[Job]:
        """Return all jobs of a diagnosis, in order; a trained policy needs some of the start policy's."""
        start = [] if iteration == 0 else [self.job("recovery_check", 0), self.job("probabilities", 0)]
        first = [] if self.plan.config.diagnosis.mistakes and iteration else [self.job("diagnose", 0)]
        panel = [self.job("diagnose", iteration)] if iteration else []
        rest = [self.job(stage, iteration) for stage in (*PARTS[1:], "diagnosis_report")]
        return [*first, self.job("mistakes", 0), *start, *panel, *rest]

    def job(self, stage: str, iteration: int) -> Job:
        """Return the job of one part; ``mistakes`` is made once, from the start policy, or given."""
        inputs: dict[str, Source]
        if stage == "mistakes":
            return self._job(stage, 0, self._mistakes_from())
        if stage == "diagnosis_report":
            inputs = {part: self.job(part, iteration).output for part in PARTS}
            inputs["mistakes"] = self._set
            return self._job(stage, iteration, inputs)
        inputs = {"data": self.plan.data(self.split)}
        if stage in ("recovery_check", "probabilities"):
            inputs |= {"policy": self.plan.policy(iteration), "mistakes": self._set}
            if iteration:
                inputs["start"] = self.job(stage, 0).output
        elif stage == "diagnose":
            inputs["policy"] = self.plan.policy(iteration)
        else:
            inputs["panel"] = self.job("diagnose", iteration).output
            if stage == "intervene" or isinstance(self.plan.config.teacher, SelfSection):
                inputs["policy"] = self.plan.policy(iteration)
        return self._job(stage, iteration, inputs)

    @property
    def _set(self) -> Source:
        return self.job("mistakes", 0).output

    def _mistakes_from(self) -> dict[str, Source]:
        given = self.plan.config.diagnosis.mistakes
        inputs = {"data": self.plan.data(self.split)}
        if given is None:
            return inputs | {"panel": self.job("diagnose", 0).output}
        return inputs | {"given": Source("", artifact_at(given).manifest.content_digest)}

    def _job(self, stage: str, iteration: int, inputs: dict[str, Source]) -> Job:
        return self.plan.make(stage, iteration, self.plan.layout.stage(iteration, stage), inputs)
