"""The jobs of a diagnosis: one a part, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pivotopd.artifacts import artifact_at
from pivotopd.errors import ArtifactError
from pivotopd.teacher_section import SelfSection
from stages.plan import Plan
from stages.work import Job, Source

PARTS: Final = ("diagnose", "intervene", "recovery_check", "agreement", "probabilities")
"""Stages whose figures the report holds, in its order."""
START: Final = {
    "diagnose": "start_panel",
    "recovery_check": "start_recovery",
    "probabilities": "start_probabilities",
}
"""Parts that are measured of the start policy too, to their roles in a trained policy's report."""
STAGES: Final = (*PARTS, "mistakes", "diagnosis_report")


@dataclass(frozen=True)
class DiagnosisPlan:
    """Names the jobs of a diagnosis of any policy of a run.

    Args:
        plan: The run's plan; its configuration decides the diagnosis, its policies are diagnosed.
    """

    plan: Plan

    def jobs(self, iteration: int) -> list[Job]:
        """Return all jobs of a diagnosis, in order; a trained policy's has the start policy beside it."""
        found = [self.job("diagnose", 0), self.job("mistakes", 0)]
        if iteration:
            found += [self.job("recovery_check", 0), self.job("probabilities", 0)]
            found.append(self.job("diagnose", iteration))
        return found + [self.job(stage, iteration) for stage in (*PARTS[1:], "diagnosis_report")]

    def job(self, stage: str, iteration: int) -> Job:
        """Return the job of one part; ``mistakes`` is made once, from the start policy, or given."""
        if stage == "mistakes":
            return self._job(stage, 0, self._mistakes_from())
        policy = {"policy": self.plan.policy(iteration)}
        if stage == "diagnosis_report":
            inputs = {part: self.job(part, iteration).output for part in PARTS}
            if iteration:
                inputs |= {role: self.job(part, 0).output for part, role in START.items()}
            return self._job(stage, iteration, inputs | policy | {"mistakes": self._set})
        inputs = {"data": self._data}
        if stage in ("recovery_check", "probabilities"):
            inputs |= policy | {"mistakes": self._set}
            if iteration:
                inputs["start"] = self.job(stage, 0).output
        elif stage == "diagnose":
            inputs |= policy
        else:
            inputs["panel"] = self.job("diagnose", iteration).output
            if stage == "intervene" or isinstance(self.plan.config.teacher, SelfSection):
                inputs |= policy
            if stage == "agreement":
                inputs |= self.plan.teacher_inputs
        return self._job(stage, iteration, inputs)

    @property
    def _data(self) -> Source:
        return self.plan.data(self.plan.config.diagnosis_split)

    @property
    def _set(self) -> Source:
        return self.job("mistakes", 0).output

    def _mistakes_from(self) -> dict[str, Source]:
        given = self.plan.config.diagnosis.mistakes
        if given is None:
            return {"data": self._data, "panel": self.job("diagnose", 0).output}
        artifact = artifact_at(given)
        if artifact.manifest.stage != "mistakes":
            raise ArtifactError(
                f"this is an artifact of the stage {artifact.manifest.stage!r}, not a set of mistakes",
                where=artifact.uri,
                mend="set diagnosis.mistakes to RUN/iterations/0000/mistakes/DIGEST of a diagnosis",
            )
        return {"data": self._data, "given": Source("", artifact.manifest.content_digest)}

    def _job(self, stage: str, iteration: int, inputs: dict[str, Source]) -> Job:
        return self.plan.make(stage, iteration, self.plan.layout.stage(iteration, stage), inputs)
