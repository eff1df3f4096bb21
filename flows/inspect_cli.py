"""``pivotopd inspect``: what a run holds, what it took, and one episode turn by turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pivotopd.artifacts import Artifact
    from pivotopd.records import Advantage, Chain, Label, Turn

OBSERVATION_CHARACTERS = 160


def inspect(
    run: Annotated[str, typer.Argument(help="Address of a run: ROOT/NAME.")],
    iteration: Annotated[int | None, typer.Option("--iteration", min=0, help="Only this iteration.")] = None,
    episode: Annotated[
        str | None, typer.Option("--episode", help="Show this episode turn by turn, such as 0003/000/01.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show what was used: steps, tokens, calls, seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --cost: print JSON.")] = False,
) -> None:
    """Show what a run holds, with --cost what it took; with --episode, one episode turn by turn."""
    from rich.console import Console

    from pivotopd.errors import ConfigError

    if (cost and episode is not None) or (as_json and not cost):
        raise ConfigError(
            "--cost is about a run or an iteration, and --json about --cost",
            where="--episode" if episode is not None else "--json",
            mend="give RUN --cost [--iteration N] [--json], or RUN --episode ID",
        )
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    if cost:
        from flows.bill import show_cost

        show_cost(console, run, iteration, as_json=as_json)
    elif episode is not None:
        _show_episode(console, run, _iteration_of(episode, iteration), episode)
    else:
        _show_run(console, run, iteration)


def _iteration_of(episode: str, asked: int | None) -> int:
    """Return the iteration that an episode's id names; ConfigError where another one is asked for."""
    from pivotopd.errors import ConfigError

    first = episode.partition("/")[0]
    if not first.isdecimal():
        raise ConfigError(
            f"{episode!r} is not an episode's id",
            where="--episode",
            mend="write ITERATION/TASK/SAMPLE: 0003/000/01",
        )
    if asked not in (None, int(first)):
        raise ConfigError(
            f"episode {episode} is of iteration {int(first)}, not of {asked}",
            where="--iteration",
            mend="leave --iteration out: the episode's id names it",
        )
    return int(first)


def _show_run(console: Console, run: str, iteration: int | None) -> None:
    """Print one line an artifact, in the order of the run."""
    from rich.table import Table

    from pivotopd.artifacts import list_artifacts
    from pivotopd.errors import ArtifactError
    from stages.command import STAGES
    from stages.metrics import metrics_of
    from stages.runs import find_run

    config, layout = find_run(run)
    console.print(
        f"{layout.uri}: {config.method.name}, seed {config.seed}, {config.iterations} iterations planned",
        markup=False,
    )
    table = Table("iteration", "stage", "digest", "tables", "seconds", "metrics")
    found = [a for a in list_artifacts(layout.store, layout.run) if a.manifest.stage in STAGES]
    if iteration is not None:
        found = [artifact for artifact in found if artifact.manifest.iteration == iteration]
    if iteration is not None and not found:
        raise ArtifactError(
            f"there is nothing of iteration {iteration}",
            where=layout.uri,
            mend="`pivotopd inspect RUN` lists all",
        )
    for artifact in sorted(found, key=_order):
        manifest = artifact.manifest
        metrics = [f"{name.split('/', 1)[1]} {value:.3g}" for name, value in metrics_of(artifact).items()]
        table.add_row(
            str(manifest.iteration),
            manifest.stage,
            manifest.digest[:12],
            ", ".join(f"{part.table} {part.rows}" for part in manifest.parts),
            f"{sum(manifest.seconds.values()):.1f}",
            ", ".join(metrics),
        )
    console.print(table)


def _order(artifact: Artifact) -> tuple[int, int, str]:
    from stages.command import STAGES

    manifest = artifact.manifest
    stages = ("evaluate", *(stage for stage in STAGES if stage != "evaluate"))
    at = -1 if manifest.iteration is None else manifest.iteration
    return at, stages.index(manifest.stage), manifest.created_at.isoformat()


def _show_episode(console: Console, run: str, iteration: int, episode: str) -> None:
    """Print an episode's turns with label, recovery branch and advantages."""
    from pivotopd.errors import ArtifactError
    from pivotopd.records import Advantage, Chain, Episode, Label, Lesson, Turn
    from stages.lineage import lineage
    from stages.runs import find_run

    _, layout = find_run(run)
    found = lineage(layout, iteration)
    rollout = found.get("rollout")
    played = [one for one in rollout.rows(Episode) if one.episode == episode] if rollout else []
    if not played or rollout is None:
        raise ArtifactError(
            f"iteration {iteration} has no episode {episode!r}",
            where=layout.uri,
            mend="`pivotopd inspect RUN` lists what there is; episodes are named ITERATION/TASK/SAMPLE",
        )
    turns = [turn for turn in rollout.rows(Turn) if turn.episode == episode]
    recover, label, update = found.get("recover"), found.get("label"), found.get("update")
    branches = [turn for turn in recover.rows(Turn) if turn.episode == episode] if recover else []
    chains = {one.pivot_turn: one for one in recover.rows(Chain) if one.episode == episode} if recover else {}
    labels = {one.turn: one for one in label.rows(Label) if one.episode == episode} if label else {}
    advantages = {
        (one.turn, one.pivot_turn): one
        for one in (update.rows(Advantage) if update else [])
        if one.episode == episode
    }
    one = played[0]
    console.print(", ".join(f"{stage} {made.digest[:12]}" for stage, made in found.items()), style="dim")
    console.print(f"{one.task}: {turns[0].instruction if turns else ''}", markup=False)
    console.print(
        f"return {one.episode_return:g}, {'won' if one.won else 'not won'}, ended by {one.termination}\n"
    )
    for told in label.rows(Lesson) if label else []:
        if told.episode == episode and (told.lesson or told.unread):
            said = f"lesson: {told.lesson}" if told.lesson else f"not read by the teacher: {told.unread}"
            console.print(said, markup=False, style="yellow")
    named = not recover or recover.manifest.config["method"]["hint_form"] == "action"
    for turn in sorted(turns, key=lambda turn: turn.turn):
        _show_turn(console, turn, labels.get(turn.turn), advantages.get((turn.turn, None)))
        if turn.turn in chains:
            _show_chain(console, chains[turn.turn], branches, advantages, named=named)


def _show_turn(console: Console, turn: Turn, label: Label | None, advantage: Advantage | None) -> None:
    from rich.markup import escape

    console.print(f"[bold]{turn.turn:3}[/bold] {escape(_short(turn.observation))}")
    marks = [] if turn.valid else ["[red]invalid reply[/red]"]
    marks += ["[red]cut[/red]"] if turn.finish_reason == "length" else []
    marks += [_colour(advantage.total)] if advantage else []
    console.print(f"    [cyan]> {escape(_short(turn.action))}[/cyan]  {'  '.join(marks)}")
    if label is not None:
        style = "yellow" if label.pivotal else "dim"
        gold = escape(label.gold_action or label.gold_written)
        after = "never" if label.distance_after is None else label.distance_after
        known = label.distance_before is not None  # only an oracle knows distances
        distances = f" (turns to go {label.distance_before} -> {after})" if known else ""
        console.print(f"    [{style}]{label.reason}: gold action {gold}{distances}[/{style}]")
    for part in ("prevention", "lesson"):
        values = getattr(advantage, part, ())
        if len(values):
            hint = "gold hint" if part == "prevention" else "lesson"
            console.print(f"    {hint}: {_colour(values)}, part of the turn's")


def _show_chain(
    console: Console,
    chain: Chain,
    branches: list[Turn],
    advantages: dict[tuple[int, int | None], Advantage],
    *,
    named: bool,
) -> None:
    from rich.markup import escape

    for branch in sorted(branches, key=lambda turn: turn.turn):
        if branch.pivot_turn == chain.pivot_turn:
            advantage = advantages.get((branch.turn, branch.pivot_turn))
            shown = _colour(advantage.total) if advantage else ""
            console.print(
                f"      [green]recovery {branch.depth}[/green] {escape(_short(branch.observation))}"
            )
            hint = "hint" if named else "hint without an action, where the teacher named"
            console.print(f"        {hint} {escape(branch.gold_action or '')}")
            console.print(f"        [cyan]> {escape(_short(branch.action))}[/cyan]  {shown}")
    detail = f": {escape(chain.detail)}" if chain.detail else ""
    console.print(f"      [dim]recovery ended by {chain.stopped} after {chain.accepted} turns{detail}[/dim]")


def _colour(values: Sequence[float]) -> str:
    """Return the mean advantage of a turn's tokens in its colour."""
    advantage = sum(values) / max(1, len(values))
    colour = "green" if advantage > 0 else "red" if advantage < 0 else "dim"
    return f"[{colour}]advantage {advantage:+.4f}[/{colour}]"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= OBSERVATION_CHARACTERS else f"{flat[: OBSERVATION_CHARACTERS - 1]}…"
