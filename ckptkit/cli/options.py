"""Declares the arguments and options that several commands share, so that their names and help are the same.

Imports nothing else of ckptkit before a command runs or a name is completed. Completion reads only local roots, and
offers nothing if it finds none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

_MOST = 200


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the committed checkpoints of the typed ROOT, newest first."""
    # Before the value of an option, click has not assigned the arguments yet: the root is the first of them.
    root = ctx.params.get("root") or ctx.params.get("source") or next(iter(ctx.args), None)
    return [one for one in _local_checkpoints(root) if one.startswith(incomplete)][:_MOST]


def _local_checkpoints(root: Any) -> list[str]:
    if not isinstance(root, str) or ("://" in root and not root.startswith("file://")):
        return []
    from ckptkit.format.layout import CHECKPOINTS, COMMIT, CheckpointName

    folder = os.path.join(root.removeprefix("file://"), CHECKPOINTS)
    try:
        names = [name for one in os.listdir(folder) if (name := CheckpointName.parse(one)) is not None]
    except OSError:
        return []
    newest_first = (str(name) for name in sorted(names, reverse=True))
    return [one for one in newest_first if os.path.exists(os.path.join(folder, one, COMMIT))]


Root = Annotated[str, typer.Argument(help="The run root: a path or a URL (s3://, obs://).")]
Command = Annotated[list[str] | None, typer.Argument(help="The command that trains, after two dashes.")]
Checkpoint = Annotated[
    str,
    typer.Argument(help="A name that ckptkit ls shows, or latest.", autocompletion=complete_checkpoint),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="Option of the storage, such as endpoint_url=https://...; repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Junit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the result as a JUnit XML file, for a CI system.")
]
NameMap = Annotated[
    str | None,
    typer.Option("--map", metavar="FILE.json", help="Maps old names to new ones; null leaves a name out."),
]
Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="A name, or a prefix that ends with a dot; repeatable."),
]
Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="NAME", help="Leave out a name, or a prefix that ends with a dot; repeatable."),
]


def examples(*commands: str) -> str:
    """Return the last lines of a command's help."""
    return "\n\n".join([f"Example{'s' if len(commands) > 1 else ''}:", *commands])
