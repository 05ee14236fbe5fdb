"""Declares ``ckptkit export`` and ``ckptkit import``; `ckptkit.cli.commands.export_import` implements them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ckptkit.cli.options import AsJson, Checkpoint, Drop, NameMap, Options, Rename, Root, ShardSize, examples


def add_interchange(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    export_epilog = examples(
        "ckptkit export runs/vit-17 -o vit.ckpt",
        "ckptkit export runs/vit-17 -o vit.safetensors --rename backbone.=encoder. --drop head.",
        "ckptkit export s3://bucket/vit-17 a000002-c0000001200-m0000 -o vit.ckpt --with-optimizer",
    )
    import_epilog = examples(
        "ckptkit import vit.ckpt runs/vit-18",
        "ckptkit import vit.safetensors runs/vit-18 --rename encoder.=backbone. --drop head.",
    )
    app.command("export", no_args_is_help=True, epilog=export_epilog)(export_file)
    app.command("import", no_args_is_help=True, epilog=import_epilog)(import_file)


def export_file(
    root: Root,
    checkpoint: Checkpoint = "latest",
    *,
    file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="What to write, on this machine.")],
    file_format: Annotated[
        Literal["ckpt", "safetensors"] | None, typer.Option("--format", help="Default: the ending of FILE.")
    ] = None,
    shard_size: ShardSize = None,
    with_optimizer: Annotated[
        bool, typer.Option("--with-optimizer", help="Also export what the optimizer owns, such as moments.")
    ] = False,
    name_map: NameMap = None,
    rename: Rename = None,
    drop: Drop = None,
    rank: Annotated[int, typer.Option(min=0, help="Take the values of this rank where each rank has its own.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a checkpoint to a .ckpt or .safetensors file that mindspore.load_checkpoint reads.

    Every byte is verified on the way. Exits with 1 if the checkpoint is corrupt or not there.
    """
    from ckptkit.cli.commands.export_import import ExportOptions, NameOptions, run_export

    names = NameOptions(name_map, rename or [], drop or [])
    wanted = ExportOptions(file, file_format, shard_size, with_optimizer, rank, force, names)
    raise typer.Exit(run_export(root, checkpoint, options or [], wanted, as_json=as_json))


def import_file(
    file: Annotated[str, typer.Argument(help="A .ckpt, .safetensors or .safetensors.index.json file on this machine.")],
    root: Annotated[str, typer.Argument(help="The root of the new run, which must be empty: a path or a URL.")],
    *,
    name_map: NameMap = None,
    rename: Rename = None,
    drop: Drop = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Make a run whose first start begins with the weights of a file; everything else begins afresh.

    Exits with 1 if the file cannot be read or the root is not empty; nothing is written then.
    """
    from ckptkit.cli.commands.export_import import NameOptions, run_import

    names = NameOptions(name_map, rename or [], drop or [])
    raise typer.Exit(run_import(file, root, options or [], names, as_json=as_json))
