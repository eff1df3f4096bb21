"""``pivotopd config`` and ``pivotopd tables``: every key and every column, with its meaning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG] [KEY=VALUE]...", help="A YAML file and overrides."),
    ] = None,
    markdown: Annotated[bool, typer.Option(help="Print the page docs/configuration.md.")] = False,
) -> None:
    """Show every configuration key; with a file or overrides, the resolved configuration as YAML."""
    if markdown:
        typer.echo(configuration_page(), nl=False)
    elif arguments:
        from flows.arguments import config_from
        from pivotopd.config_files import dump_config

        typer.echo(dump_config(config_from(arguments)), nl=False)
    else:
        _show_keys()


def tables(
    markdown: Annotated[bool, typer.Option(help="Print the page docs/tables.md.")] = False,
) -> None:
    """Show every table that stages write, with its columns."""
    if markdown:
        typer.echo(tables_page(), nl=False)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    for title, meaning, columns in _records():
        shown = Table("column", "type", "meaning", title=title, caption=meaning, title_justify="left")
        for row in columns:
            shown.add_row(*row)
        console.print(shown)


def _show_keys() -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from pivotopd.config_files import describe_keys

    shown = Table("key", "default", "meaning", caption="set one with key=value after the config file")
    for row in describe_keys():
        shown.add_row(*(escape(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def configuration_page() -> str:
    """Return docs/configuration.md: a table of every key."""
    from pivotopd.config_files import describe_keys

    lines = [
        "# Configuration",
        "",
        "Written by `make docs` from `pivotopd/config.py` and the sections that it takes in (methods,",
        "`engine`, `launch`); do not edit. Methods and their formulas: [methods.md](methods.md).",
        "",
        "A run is one YAML file and `key=value` overrides after it on the command line:",
        "",
        "    pivotopd config configs/demo.yaml method=grpo update.learning_rate=5e-5",
        "",
        "prints what they resolve to. Unknown keys are refused, with the nearest known one named. Defaults",
        "are the paper's ALFWorld recipe. A name in brackets tells which choice of a section a key is for:",
        "`method [grpo].normalise_std` is written `method.normalise_std`, and exists when `method.name` is",
        "`grpo`. `STAGE` stands for a stage, as in `launch.stages.update.gpus=8`.",
        "",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    rows = describe_keys()
    lines += [f"| `{key}` | {_cell(default)} | {_plain(meaning)} |" for key, default, meaning in rows]
    return "\n".join(lines) + "\n"


def tables_page() -> str:
    """Return docs/tables.md: every table with its columns."""
    lines = [
        "# Tables",
        "",
        "Written by `make docs` from the records in `pivotopd/records.py`; do not edit.",
        "",
        "Stages exchange these tables as Parquet (zstd). The Arrow schemas are explicit and carry a version;",
        "a reader refuses another one. How the files lie in a run: [artifacts.md](artifacts.md).",
    ]
    for title, meaning, columns in _records():
        lines += ["", f"## {title}", "", meaning, "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {_plain(doc)} |" for name, kind, doc in columns]
    return "\n".join(lines) + "\n"


def _records() -> list[tuple[str, str, list[tuple[str, str, str]]]]:
    """Return (title, meaning, columns) of every record; a column is (name, type, meaning)."""
    from typing import get_args

    from pivotopd.records import Record, schema_of

    found = []
    for record in get_args(Record):
        columns = [
            (
                item.name,
                _type_name(str(item.type)) + (" or null" if item.nullable else ""),
                item.metadata[b"doc"].decode(),
            )
            for item in schema_of(record)
        ]
        meaning = " ".join((record.__doc__ or "").split("\n\n")[0].split())
        found.append((f"{record.TABLE} (version {record.VERSION})", meaning, columns))
    return found


def _type_name(arrow: str) -> str:
    """Shorten ``list<item: int32 not null>`` to ``list of int32``."""
    inner = arrow.removeprefix("list<item: ").removesuffix(">").removesuffix(" not null")
    return f"list of {inner}" if arrow.startswith("list<") else arrow


def _cell(value: str) -> str:
    return f"`{value}`" if value else ""


def _plain(text: str) -> str:
    """Escape what would break a table row; docstrings' double backquotes become single ones."""
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def write_pages(folder: Path) -> None:
    """Write the generated pages into ``docs/``."""
    for name, text in (("configuration.md", configuration_page()), ("tables.md", tables_page())):
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path("docs"))
