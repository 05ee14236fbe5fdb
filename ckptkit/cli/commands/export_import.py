"""Implements ``ckptkit export`` and ``ckptkit import``; ``docs/interchange.md`` describes the JSON.

An export only reads the run. Both check their arguments before they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, wrong_values
from ckptkit.cli.options import AsJson, Checkpoint, Options, Root, open_root
from ckptkit.cli.output import plain, print_result
from ckptkit.core.text import size, some
from ckptkit.tools.interchange import Renames, export_weights, import_weights

_NameMap = Annotated[
    str | None, typer.Option("--map", metavar="FILE.json", help="Maps old names to new ones; null leaves a name out.")
]
_Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="A name, or a prefix that ends with a dot; repeatable."),
]
_Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="NAME", help="Leave out a name, or a prefix that ends with a dot; repeatable."),
]


def run_export(
    root: Root,
    checkpoint: Checkpoint = "latest",
    *,
    file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="What to write, on this machine.")],
    with_optimizer: Annotated[
        bool, typer.Option("--with-optimizer", help="Also export what the optimizer owns, such as moments.")
    ] = False,
    name_map: _NameMap = None,
    rename: _Rename = None,
    drop: _Drop = None,
    rank: Annotated[int, typer.Option(min=0, help="Take the values of this rank where each rank has its own.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Write the weights of a checkpoint to a .ckpt or .safetensors file that mindspore.load_checkpoint reads.

    Every byte is verified on the way. Exits with 1 if the checkpoint is corrupt or not there.

    Examples:
        ckptkit export runs/vit-17 -o vit.ckpt
        ckptkit export runs/vit-17 -o vit.safetensors --rename backbone.=encoder. --drop head.
        ckptkit export s3://bucket/vit-17 a000002-c0000001200-m0000 -o vit.ckpt --with-optimizer
    """
    storage = open_root(root, options)
    with wrong_values():
        done = export_weights(
            storage,
            file,
            checkpoint=checkpoint,
            with_optimizer=with_optimizer,
            renames=_renames(name_map, rename, drop),
            rank=rank,
            overwrite=force,
        )
    lines = [f"{done.checkpoint}: {done.tensors} tensors, {size(done.size_bytes)} in {done.file}"]
    lines.append(f"not in it: {', '.join(done.left_out)}")
    if done.per_rank:
        lines.append(f"each rank has its own of these, and rank {done.rank}'s were taken: {some(done.per_rank)}")
    print_result({"root": storage.url, **plain(done)}, lines, as_json=as_json)
    return FINE


def run_import(
    file: Annotated[str, typer.Argument(help="A .ckpt, .safetensors or .safetensors.index.json file on this machine.")],
    root: Annotated[str, typer.Argument(help="The root of the new run, which must be empty: a path or a URL.")],
    *,
    name_map: _NameMap = None,
    rename: _Rename = None,
    drop: _Drop = None,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Make a run whose first start begins with the weights of a file; everything else begins afresh.

    Exits with 1 if the file cannot be read or the root is not empty; nothing is written then.

    Examples:
        ckptkit import vit.ckpt runs/vit-18
        ckptkit import vit.safetensors runs/vit-18 --rename encoder.=backbone. --drop head.
    """
    storage = open_root(root, options, writes=True)
    with wrong_values():
        done = import_weights(file, storage, renames=_renames(name_map, rename, drop))
    lines = [f"{done.file}: {done.tensors} tensors, {size(done.size_bytes)} in {done.checkpoint} of {done.root}"]
    if done.ignored:
        lines.append(f"not imported, because it is not a weight: {some(done.ignored)}")
    lines.append(f"not in it, and begun afresh by the first start on this root: {', '.join(done.not_in_it)}")
    print_result(done, lines, as_json=as_json)
    return FINE


def _renames(map_file: str | None, renamed: Sequence[str] | None, dropped: Sequence[str] | None) -> Renames:
    if map_file is None:
        return Renames.of(renamed or (), dropped or ())
    if renamed or dropped:
        raise ValueError(
            "--map cannot be combined with --rename or --drop: put those names into the file (null drops a name)"
        )
    return Renames.read(map_file)
