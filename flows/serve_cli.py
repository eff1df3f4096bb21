"""``pivotopd serve``: engines that are started by hand and outlive the runs that use them."""

from __future__ import annotations

from typing import Annotated

import typer

serve_app = typer.Typer(help="Start an engine that runs attach to.", no_args_is_help=True)


@serve_app.callback()
def _serve() -> None:
    """Start an engine that runs attach to."""


@serve_app.command()
def policy(
    subject: Annotated[
        str,
        typer.Argument(metavar="MODEL_OR_RUN", help="A model folder, or a run: ROOT/NAME."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as engine.kind=vllm."),
    ] = None,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=0, help="Updates behind a run's policy; default all.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="YAML file with the settings for a model folder.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, help="Port; 0 takes a free one.")] = 8801,
) -> None:
    """Serve a policy until it is stopped; a run with its address in engine.urls generates there.

    A run loads each new policy into the servers that it is attached to. Whoever reaches the port can do the
    same: listen only where nobody else does. Ctrl-C and SIGTERM end it.
    """
    from pivotopd.errors import Preempted
    from pivotopd.services.server import bind, serve, url_of

    with bind(host, port) as taken:
        from stages.serving import served_policy

        served = served_policy(subject, iteration, config, overrides or [])
        server, url = served.start(), url_of(taken)
        try:
            serve(server, taken, lambda: typer.echo(f"policy {served.digest[:12]} is served at {url}"))
        except (Preempted, KeyboardInterrupt):
            typer.echo("ended")
        finally:
            server.close()
