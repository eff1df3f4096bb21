"""``pivotopd stage`` and ``pivotopd evaluate``: parts of a run, from what is stored."""

from __future__ import annotations

from typing import Annotated

import typer

RunOption = Annotated[str, typer.Option("--run", help="Address of the run: ROOT/NAME.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the run's.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def stage(
    name: Annotated[
        str,
        typer.Argument(
            help="rollout, label, recover, update, evaluate, skills, warm_start, or a part of a diagnosis: "
            "diagnose, mistakes, intervene, recovery_check, agreement, probabilities, diagnosis_report."
        ),
    ],
    run: RunOption,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=0, help="Training iteration, from 0.")
    ] = None,
    overrides: Overrides = None,
    only: Annotated[bool, typer.Option("--only", help="Leave out the stages that follow it.")] = False,
    to: Annotated[
        str | None, typer.Option("--to", help="Run it as one job there: slurm or kubernetes.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="With --to: submit, and do not wait.")] = False,
    dry_run: DryRun = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was done and what is stale as JSON.")
    ] = False,
) -> None:
    """Run one stage of a run again from stored inputs, and what follows it in the same iteration.

    With other settings, a new artifact lies beside the old one; nothing is overwritten. What was made from
    the old one is named as stale.
    """
    if to is not None and as_json:
        from pivotopd.errors import ConfigError

        raise ConfigError("--json is about work done here", where="--json", mend="leave --to or --json out")
    if to is not None:
        from flows.submit_cli import submit_stage

        submit_stage(to, name, run, iteration, overrides or [], only=only, detach=detach, dry_run=dry_run)
        return
    if detach:
        from pivotopd.errors import ConfigError

        raise ConfigError("--detach is for jobs", where="command line", mend="give --to PLATFORM as well")
    from flows.rerun import rerun_stage

    rerun_stage(name, run, iteration, overrides or [], only=only, dry_run=dry_run, as_json=as_json)


def evaluate(
    run: Annotated[str, typer.Argument(help="Address of the run: ROOT/NAME.")],
    overrides: Overrides = None,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=0, help="Updates behind the policy; default all.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Evaluate a policy of a run, on its own panel or on others.

    Other games: environment.games=PATH environment.valid_split=NAME.
    """
    from flows.evaluate_cli import run_evaluation

    run_evaluation(run, iteration, overrides or [], dry_run=dry_run)
