"""Implements ``ckptkit export`` and ``ckptkit import``: convert weights to and from the files of other programs.

The JSON of an export has the fields of `ckptkit.tools.interchange.Exported` and ``root``; that of an import has those
of `ckptkit.tools.interchange.Imported`. An export only reads the run. Both check their arguments before they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckptkit.cli.errors import FINE, wrong_values
from ckptkit.cli.output import plain, print_result, size
from ckptkit.cli.run_root import open_root
from ckptkit.core.text import some
from ckptkit.tools.interchange import Exported, Imported, Renames, export_weights, import_weights


@dataclass(frozen=True)
class NameOptions:
    """Holds the typed options that rename tensors: a map file, or rules."""

    map_file: str | None
    renamed: Sequence[str]
    dropped: Sequence[str]

    def read(self) -> Renames:
        """Return the rules; raises ValueError if they are invalid."""
        if self.map_file is None:
            return Renames.of(self.renamed, self.dropped)
        if self.renamed or self.dropped:
            raise ValueError(
                "--map cannot be combined with --rename or --drop: put those names into the file (null drops a name)"
            )
        return Renames.read(self.map_file)


@dataclass(frozen=True)
class ExportOptions:
    """Holds the options of an export."""

    file: str
    with_optimizer: bool
    rank: int
    overwrite: bool
    names: NameOptions


def run_export(root: str, checkpoint: str, options: Iterable[str], wanted: ExportOptions, *, as_json: bool) -> int:
    """Write the file and print what it holds; returns the exit code."""
    storage = open_root(root, options)
    with wrong_values():
        done = export_weights(
            storage,
            wanted.file,
            checkpoint=checkpoint,
            with_optimizer=wanted.with_optimizer,
            renames=wanted.names.read(),
            rank=wanted.rank,
            overwrite=wanted.overwrite,
        )
    print_result({"root": storage.url, **plain(done)}, _words_of_export(done), as_json=as_json)
    return FINE


def run_import(file: str, root: str, options: Iterable[str], names: NameOptions, *, as_json: bool) -> int:
    """Make the run and print what it holds; returns the exit code."""
    storage = open_root(root, options, writes=True)
    with wrong_values():
        done = import_weights(file, storage, renames=names.read())
    print_result(done, _words_of_import(done), as_json=as_json)
    return FINE


def _words_of_export(done: Exported) -> Iterator[str]:
    yield f"{done.checkpoint}: {done.tensors} tensors, {size(done.size_bytes)} in {done.file}"
    yield f"not in it: {', '.join(done.left_out)}"
    if done.per_rank:
        yield f"each rank has its own of these, and rank {done.rank}'s were taken: {some(done.per_rank)}"


def _words_of_import(done: Imported) -> Iterator[str]:
    yield f"{done.file}: {done.tensors} tensors, {size(done.size_bytes)} in {done.checkpoint} of {done.root}"
    if done.ignored:
        yield f"not imported, because it is not a weight: {some(done.ignored)}"
    yield f"not in it, and begun afresh by the first start on this root: {', '.join(done.not_in_it)}"
