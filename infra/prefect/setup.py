"""Set up a Prefect server for the deployments of prefect.yaml. May be run again: it changes what differs.

It makes the work pools, the concurrency limit with a slot for each GPU, the variables that prefect.yaml
names, and an automation that marks flow runs as crashed whose process has died without a word.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.variables import Variable

from flows.tasks import GPU_LIMIT

FOLDER = Path(__file__).resolve().parent
POOLS = {
    "pivotopd": ("process", FOLDER / "process.json"),
    "pivotopd-slurm": ("process", FOLDER / "slurm.json"),
    "pivotopd-kubernetes": ("kubernetes", FOLDER.parent / "kubernetes/prefect-job-template.json"),
}
"""Name, type and base job template of each work pool."""
LOST = "pivotopd: lost flow runs"
"""Name of the automation."""


def setup(
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs; 0 sets no limit.")] = 0,
    root: Annotated[str, typer.Option("--root", help="Storage root of evaluate-newest.")] = "runs",
    lost_after_s: Annotated[
        int,
        typer.Option(
            "--lost-after-s", min=60, help="Silence after which a run is crashed; a process calls each 180 s."
        ),
    ] = 600,
) -> None:
    """Set up work pools, the limit of GPUs, variables and the automation for lost flow runs."""
    with get_client(sync_client=True) as client:
        for name, (kind, file) in POOLS.items():
            _make_pool(client, name, kind, _template(file))
            typer.echo(f"work pool {name} ({kind})")
        typer.echo(_limit_gpus(client, gpus))
        _make_automation(client, lost_after_s)
        typer.echo(f"automation {LOST!r}: crashed after {lost_after_s} s of silence")
    Variable.set("pivotopd_root", _address(root), overwrite=True)
    typer.echo(f"variable pivotopd_root = {_address(root)}")


def _address(root: str) -> str:
    """Return a root that means the same in every folder."""
    return root if "://" in root else os.path.abspath(root)


def _template(file: Path) -> dict[str, Any]:
    """Return a base job template; a job of SLURM runs this Python."""
    template: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    properties = template["variables"]["properties"]
    if "python" in properties:
        properties["python"]["default"] = sys.executable
    return template


def _make_pool(client: SyncPrefectClient, name: str, kind: str, template: Mapping[str, Any]) -> None:
    """Make a work pool, or give the one that is there this template; it keeps its limit and its queues."""
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=dict(template)))
    else:
        client.update_work_pool(name, WorkPoolUpdate(base_job_template=dict(template)))


def _limit_gpus(client: SyncPrefectClient, gpus: int) -> str:
    """Set or remove the global concurrency limit, and say which."""
    try:
        client.read_global_concurrency_limit_by_name(GPU_LIMIT)
    except ObjectNotFound:
        if gpus:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=gpus))
    else:
        if gpus:
            client.update_global_concurrency_limit(GPU_LIMIT, GlobalConcurrencyLimitUpdate(limit=gpus))
        else:
            client.delete_global_concurrency_limit_by_name(GPU_LIMIT)
    return f"concurrency limit {GPU_LIMIT}: {gpus or 'none'}"


def _make_automation(client: SyncPrefectClient, lost_after_s: int) -> None:
    """Let runs whose heartbeat stays away become Crashed: a killed process cannot say so itself."""
    heartbeat = "prefect.flow-run.heartbeat"
    ends = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}
    automation = AutomationCore(
        name=LOST,
        description="A flow run that was heard of, and then neither ended nor called again.",
        trigger=EventTrigger(
            after={heartbeat},
            expect={heartbeat, *ends},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=lost_after_s),
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed",
                state=StateType.CRASHED,
                message="no heartbeat: its process has died unheard",
                force=False,
            )
        ],
    )
    there = client.read_automations_by_name(LOST)
    if there:
        client.update_automation(there[0].id, automation)
    else:
        client.create_automation(automation)


if __name__ == "__main__":
    typer.run(setup)
