"""``pivotopd serve``: engines that are started by hand and outlive the runs that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import socket

    from pivotopd.services.server import EngineServer

serve_app = typer.Typer(help="Start an engine that runs attach to.", no_args_is_help=True)
_Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as engine.kind=vllm."),
]
_TeacherOverrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as teacher.engine=vllm."),
]
_File = Annotated[
    str | None, typer.Option("--config", help="YAML file with the settings for a model folder.")
]
_Host = Annotated[str, typer.Option("--host", help="Address to listen at.")]


@serve_app.callback()
def _serve() -> None:
    """Start an engine that runs attach to."""


@serve_app.command()
def policy(
    subject: Annotated[
        str,
        typer.Argument(metavar="MODEL_OR_RUN", help="A model folder, or a run: ROOT/NAME."),
    ],
    overrides: _Overrides = None,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=0, help="Updates behind a run's policy; default all.")
    ] = None,
    config: _File = None,
    host: _Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, help="Port; 0 takes a free one.")] = 8801,
) -> None:
    """Serve a policy until it is stopped; a run with its address in engine.urls generates there.

    A run loads each new policy into the servers that it is attached to. Whoever reaches the port can do the
    same: listen only where nobody else does. Ctrl-C and SIGTERM end it.
    """
    from pivotopd.services.server import bind

    with bind(host, port) as taken:
        _say_loading(subject, taken)
        from stages.serving import served_policy

        served = served_policy(subject, iteration, config, overrides or [])
        _answer(served.start(), taken, f"policy {served.digest[:12]}")


@serve_app.command()
def teacher(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN", help="A model folder, or a run with teacher.kind=local: ROOT/NAME."
        ),
    ],
    overrides: _TeacherOverrides = None,
    config: _File = None,
    host: _Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, help="Port; 0 takes a free one.")] = 8901,
) -> None:
    """Serve a local teacher until it is stopped; a run with its address in teacher.urls asks it there.

    The run's teacher.path must hold the same model. Whoever reaches the port can ask: listen only where
    nobody else does. Ctrl-C and SIGTERM end it.
    """
    from pivotopd.services.server import bind

    with bind(host, port) as taken:
        _say_loading(subject, taken)
        from stages.serving import served_teacher

        served = served_teacher(subject, config, overrides or [])
        _answer(served.start(), taken, f"teacher {served.digest[:12]}")


def _say_loading(subject: str, taken: socket.socket) -> None:
    """Give a sign of life before the model is read; the line that announces the address comes after it."""
    from pivotopd.services.server import url_of

    typer.echo(f"loading {subject}, to be served at {url_of(taken)}", err=True)


def _answer(server: EngineServer, taken: socket.socket, what: str) -> None:
    """Answer at an address until the process is asked to stop, then end the engine."""
    from pivotopd.services.server import serve, url_of

    url = url_of(taken)
    try:
        serve(server, taken, lambda: typer.echo(f"{what} is served at {url}"))
    except KeyboardInterrupt:
        typer.echo("ended")
    finally:
        server.close()
