"""Clusters that a configuration's ``launch`` asks for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pivotopd.config import RunConfig
from pivotopd.doctor.finding import Finding, finding_of
from pivotopd.doctor.programs import first_line, found
from pivotopd.launch.kubernetes_section import KubernetesSection
from pivotopd.launch.slurm_section import SlurmSection


def platforms(config: RunConfig) -> Iterator[Finding]:
    """Yield whether each platform answers for which the configuration has settings."""
    if config.launch.slurm != SlurmSection():
        yield from slurm()
    if config.launch.kubernetes != KubernetesSection():
        yield from kubernetes(config.launch.kubernetes)


def slurm() -> Iterator[Finding]:
    """Yield whether jobs can be submitted and asked about."""
    mend = "submit from a node with SLURM's programs: sbatch, squeue, scancel"
    for program in ("sbatch", "squeue", "scancel"):
        yield finding_of(program, partial(found, program), mend)
    mend = "see `sinfo`: the controller must answer and have a partition"
    yield finding_of("SLURM", lambda: f"partition {first_line('sinfo', '-h', '-o', '%P %a')}", mend)


def kubernetes(section: KubernetesSection) -> Iterator[Finding]:
    """Yield whether kubectl is there and the cluster lets us create jobs."""
    context = [] if section.context is None else [f"--context={section.context}"]
    mend = "install kubectl, or set launch.kubernetes.kubectl to its path"
    yield finding_of("kubectl", lambda: found(section.kubectl), mend)
    ask = (*context, "auth", "can-i", "create", "jobs.batch", f"--namespace={section.namespace}")
    mend = "see `kubectl auth can-i create jobs`: sign in, or set launch.kubernetes.context and namespace"
    yield finding_of("Kubernetes", partial(first_line, section.kubectl, *ask, "--request-timeout=10s"), mend)
