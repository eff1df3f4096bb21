"""Arguments that several ``pivotopd games`` commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

GamesPath = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATH]",
        help="Parquet of games, a folder of them, or the release's folder; default $ALFWORLD_DATA.",
    ),
]
Splits = Annotated[list[str] | None, typer.Option("--split", help="Keep this split; may be given again.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only the first N games by id.")]
Wording = Annotated[
    Literal["move", "put"], typer.Option(help="Command wording: of ALFWorld 0.4 (move) or 0.2 (put).")
]
