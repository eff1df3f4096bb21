"""``pivotopd doctor``: is everything here that a run needs, and how to mend what is not."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from pivotopd.config import RunConfig
    from pivotopd.doctor.finding import Check, Finding

NEEDED: Final = ("torch", "transformers", "deepspeed", "pyarrow", "mlflow", "prefect")
"""Libraries that are imported, because an installed one can still fail to load."""
NOT_READY = 2


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG] [KEY=VALUE]...", help="What the run will be; see `pivotopd train`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check what a run needs: libraries and their versions, GPU, disk, storage, servers, games, clusters.

    Each check is bounded in time; what is missing is told with how to mend it. Exit code 0 or 2.
    """
    from pivotopd.doctor.finding import carried_out

    findings = []
    for check in checks_of(arguments or []):
        for finding in carried_out(check):
            findings.append(finding)
            if not as_json:
                typer.echo(line_of(finding))
    missing = [finding.what for finding in findings if finding.required and not finding.ok]
    if as_json:
        told = {"ready": not missing, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(told, indent=2))
    else:
        typer.echo(f"\nnot ready: {', '.join(missing)}" if missing else "\nready")
    if missing:
        raise typer.Exit(NOT_READY)


def checks_of(arguments: list[str]) -> list[Check]:
    """Return the checks: of the machine, and of the defaults or the configuration that is given.

    Raises:
        ConfigError: The configuration is not acceptable.
    """
    from flows.arguments import config_from
    from pivotopd.doctor import games, machine, platforms, services, storage, versions
    from pivotopd.doctor.finding import IMPORT_S, Check

    config = config_from(arguments)
    vllm = _runs_vllm(config)
    gpus = config.launch.needed("update").gpus > 0 and bool(arguments)
    checks = [
        Check("Python", machine.python),
        Check("libraries", partial(machine.libraries, NEEDED), IMPORT_S),
        Check("versions", partial(versions.versions, with_vllm=vllm)),
        Check("compiler", machine.compiler),
        Check("GPU", partial(machine.gpu, needed=gpus), IMPORT_S, required=False),
        Check("ports", machine.ports),
        Check("disk", partial(storage.disk, config)),
        Check("storage", partial(storage.rights, config.root)),
        Check("MLflow", partial(services.mlflow, config)),
        Check("Prefect", partial(services.prefect, _prefect_url())),
        Check("vLLM", partial(machine.vllm, needed=vllm), required=vllm),
        Check("reference engine", machine.stock_engine, required=False),
        Check("official games", games.official, required=False),
    ]
    if arguments:
        checks += [
            *([Check("LoRA", machine.lora)] if config.update.lora is not None else []),
            Check("student", partial(storage.student_folder, config)),
            Check("teacher", partial(services.teacher, config)),
            Check("policy servers", partial(services.policy_servers, config)),
            Check("teacher servers", partial(services.teacher_servers, config)),
            Check("games", partial(games.configured, config), IMPORT_S),
            Check("clusters", partial(platforms.platforms, config)),
        ]
    return checks


def _runs_vllm(config: RunConfig) -> bool:
    """Say whether the run itself starts vLLM: for a student or a teacher that no server holds."""
    from pivotopd.teacher_section import LocalSection

    section = config.teacher
    teaches = isinstance(section, LocalSection) and section.engine == "vllm" and not section.urls
    return teaches or (config.engine.kind == "vllm" and not config.engine.urls)


def _prefect_url() -> str | None:
    """Return the server's address as Prefect resolves it: environment, profile, project."""
    from flows.prefect_defaults import set_prefect_defaults

    set_prefect_defaults()
    try:
        from prefect.settings import PREFECT_API_URL
    except ImportError:  # the check of the libraries tells that
        return None
    value = PREFECT_API_URL.value()
    return str(value) if value else None


def line_of(finding: Finding) -> str:
    """Return the line that reports a finding."""
    mark = "ok      " if finding.ok else "missing " if finding.required else "absent  "
    mend = "" if finding.ok or not finding.mend else f"\n          mend: {finding.mend}"
    return f"{mark}  {finding.what}: {finding.detail}{mend}"
