"""The section ``launch`` of a configuration: where jobs run and what each asks for."""

from __future__ import annotations

from pydantic import Field

from pivotopd.launch.base import Needed, Resources, StageName, needed
from pivotopd.launch.kubernetes_section import KubernetesSection
from pivotopd.launch.slurm_section import SlurmSection
from pivotopd.section import Section


class LaunchSection(Section):
    """Jobs of `pivotopd submit`. No digest covers it: the same work on another machine is the same work."""

    resources: Resources = Resources()
    """What every job asks for."""
    stages: dict[StageName, Resources] = Field(default_factory=dict)
    """What differs for a stage, where each is a job."""
    slurm: SlurmSection = SlurmSection()
    """SLURM."""
    kubernetes: KubernetesSection = KubernetesSection()
    """Kubernetes."""

    def needed(self, stage: str | None = None) -> Needed:
        """Return the resources of a stage's job, or of one job for the whole training."""
        own = [section for name, section in self.stages.items() if name == stage]
        return needed(*own, self.resources)
