"""Tells what a ``mindspore.dataset`` pipeline is made of, how it can be positioned, and what must not change in it.

Guarantees: `is_fast` is True only for what was measured to be exact, or what the user declared. Reads the pipeline,
changes nothing. Main thread only.

Of the nodes' attributes, ``operations``, ``per_batch_map``, ``batch_size_func`` and ``python_multiprocessing`` are
undocumented: without them, a node counts as the user's code and is replayed, and
tests/unit/mindspore/data/test_dataset.py fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import mindspore.dataset as ds

from ckptkit.core.text import some
from ckptkit.mindspore.data.sampling import Augmented, EpochSampler, GlobalSampler

# Not their subclasses, whose order is unknown.
_CARRY_EPOCHS = (EpochSampler, GlobalSampler)

# Exact with fast recovery, each measured. Anything else is replayed, which is exact for every deterministic pipeline.
# (MindSpore's own default is fast for all, and then random maps silently differ.)
_FAST = {"NumpySlicesDataset", "MnistDataset", "ImageFolderDataset", "MindDataset"}
_FAST |= {"BatchDataset", "RepeatDataset", "ProjectDataset", "RenameDataset", "ShuffleDataset", "ConcatDataset"}
_FAST |= {"ZipDataset", "SkipDataset", "TakeDataset"}
# These run one epoch of their child per epoch of their own; but code in a BatchDataset gets the epoch's number.
_SAME_IN_EVERY_EPOCH = {"GeneratorDataset", "MapDataset", "ProjectDataset", "RenameDataset", "BatchDataset"}
# Operations of MindSpore that neither draw nor keep state.
_FIXED = {"CenterCrop", "Decode", "HWC2CHW", "Normalize", "OneHot", "Pad", "Rescale", "Resize", "TypeCast"}

_WORDS = {
    "size": "batches per epoch (the number of samples, the batch size or drop_remainder changed)",
    "batch_size": "samples per batch",
    "columns": "columns",
    "workers": "operations whose random numbers depend on their workers (set num_parallel_workers to what it was)",
    "carried_seeds": "seeds of ckptkit.data.Augmented, EpochSampler and GlobalSampler",
    "global_order": "what the ckptkit.data.GlobalSampler was made with",
}


def fingerprint(dataset: ds.Dataset) -> dict[str, Any]:
    """Return what must not change between two starts, except the seed; what the operations do, only batches show.

    For some sources MindSpore runs the whole pipeline to learn its size.
    """
    samplers = samplers_that_carry_epochs(dataset)
    sampler = samplers[0] if len(samplers) == 1 else None
    holders = [
        holder for node in nodes(dataset) for holder in (getattr(node, "sampler", None), getattr(node, "source", None))
    ]
    return {
        "size": dataset.get_dataset_size(),
        "batch_size": dataset.get_batch_size(),
        "columns": tuple(dataset.get_col_names()),
        "workers": tuple(drawing_workers(dataset, stateless=False)),
        # MindSpore's seed does not change these.
        "carried_seeds": tuple(
            int(holder.seed) for holder in holders if isinstance(holder, (*_CARRY_EPOCHS, Augmented))
        ),
        # If it alone decides the batches of all ranks.
        "global_order": asdict(sampler.order) if isinstance(sampler, GlobalSampler) else None,
    }


def differences(recorded: Mapping[str, Any], mine: Mapping[str, Any], matters: set[str]) -> list[str]:
    """Return how two fingerprints differ, one line each; in workers only of the operations in ``matters``."""

    def shown(values: Mapping[str, Any], name: str) -> Any:
        if name != "workers":
            return values.get(name)
        return tuple(tuple(operation) for operation in values[name] if operation[0] in matters)

    return [
        f"{words}: the checkpoint has {shown(recorded, name)}, this dataset has {shown(mine, name)}"
        + (f"; write .batch({recorded[name]})" if name == "batch_size" else "")
        for name, words in _WORDS.items()
        if shown(recorded, name) != shown(mine, name)
    ]


def nodes(dataset: ds.Dataset) -> Iterator[ds.Dataset]:
    yield dataset
    for child in dataset.children:
        yield from nodes(child)


def describe(dataset: ds.Dataset) -> str:
    return " <- ".join(_name(node) for node in nodes(dataset))


def source_names(dataset: ds.Dataset) -> str:
    """Return the folders and files that the pipeline reads, for people; its kinds of sources where it reads none."""
    names = [name for node in nodes(dataset) if not node.children for name in _files(node)]
    return some([*dict.fromkeys(names)], 4)


def _files(node: ds.Dataset) -> list[str]:
    # Names of documented arguments, under which the nodes keep them.
    for name in ("dataset_dir", "dataset_file", "dataset_files"):
        given = getattr(node, name, None)
        if given:
            return [given] if isinstance(given, str) else [str(path) for path in given]
    return [type(node).__name__]


def is_fast(dataset: ds.Dataset, *, stateless: bool) -> bool:
    """Return whether it may begin anywhere without a replay; ``stateless`` is what the user declares."""
    return all(_is_fast(node, stateless) for node in nodes(dataset))


def drawing_workers(dataset: ds.Dataset, *, stateless: bool) -> list[tuple[str, int]]:
    """Return name and number of workers of each operation whose output depends on that number, the root first.

    The user's Python code counts as 1 worker unless it runs in processes of its own, which MindSpore seeds one by one.
    """
    return [
        (_name(node), _workers(node, own=_is_own(node)))
        for node in nodes(dataset)
        if not _is_fast(node, stateless) and (_is_own(node) or _draws_in_workers(node))
    ]


def samplers_that_carry_epochs(dataset: ds.Dataset) -> list[EpochSampler | GlobalSampler]:
    """Return all samplers of a pipeline in which only they differ from epoch to epoch; of any other, none."""
    kinds = {type(node).__name__ for node in nodes(dataset)}
    samplers = [node.sampler for node in nodes(dataset) if hasattr(node, "sampler")]
    numbered = any(type(node).__name__ == "BatchDataset" and _is_own(node) for node in nodes(dataset))
    whole = kinds <= _SAME_IN_EVERY_EPOCH and all(type(sampler) in _CARRY_EPOCHS for sampler in samplers)
    return samplers if whole and not numbered else []


def has_own_data(dataset: ds.Dataset) -> bool:
    """Return whether objects or code of the script decide what it gives, and not files alone."""
    return any(isinstance(node, ds.GeneratorDataset) or _is_own(node) for node in nodes(dataset))


def python_code_here(dataset: ds.Dataset) -> list[str]:
    """Return the types of the nodes whose code may draw from this process's global generators."""
    return sorted({type(node).__name__ for node in nodes(dataset) if _runs_here(node)})


def _is_fast(node: ds.Dataset, stateless: bool) -> bool:
    kind = type(node).__name__
    if not _of_mindspore(node) or not _is_fast_sampler(getattr(node, "sampler", None), stateless):
        return False
    if kind == "GeneratorDataset":
        return stateless or (isinstance(node.source, Augmented) and type(node.sampler) in _CARRY_EPOCHS)
    if kind == "FilterDataset":
        return stateless
    if kind == "BatchDataset":
        return stateless or not _is_own(node)
    if kind == "MapDataset":
        operations = _operations(node)
        fixed = all(_is_fixed(operation) or (stateless and not _of_mindspore(operation)) for operation in operations)
        return fixed and not getattr(node, "callbacks", None)
    return kind in _FAST


def _is_fast_sampler(sampler: Any, stateless: bool) -> bool:
    # A user's own sampler is Python code that may be random. If it does not inherit from ds.Sampler, MindSpore wraps
    # it in an IterSampler, which does.
    if sampler is None or type(sampler) in _CARRY_EPOCHS:
        return True
    if isinstance(sampler, ds.Sampler) or not _of_mindspore(sampler):
        return stateless
    return _is_fast_sampler(getattr(sampler, "child_sampler", None), stateless)


def _is_own(node: ds.Dataset) -> bool:
    """Return whether the node runs user code, apart from a sampler."""
    kind = type(node).__name__
    if kind == "BatchDataset":
        return getattr(node, "per_batch_map", node) is not None or getattr(node, "batch_size_func", node) is not None
    if kind == "MapDataset":
        return not all(map(_of_mindspore, _operations(node)))
    return kind in ("GeneratorDataset", "FilterDataset") or not _of_mindspore(node)


def _runs_here(node: ds.Dataset) -> bool:
    if not _is_fast_sampler(getattr(node, "sampler", None), stateless=False):
        return True
    if _is_fast(node, stateless=False):
        return False
    # Some of MindSpore's operations are Python code too, and which ones is decided when they run.
    python = _is_own(node) or type(node).__name__ == "MapDataset"
    return python and (_workers(node, own=True) == 1 or getattr(node, "batch_size_func", None) is not None)


def _draws_in_workers(node: ds.Dataset) -> bool:
    return type(node).__name__ == "MapDataset" and not all(map(_is_fixed, _operations(node)))


def _workers(node: ds.Dataset, *, own: bool) -> int:
    count = int(getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers())
    # With one worker, python_multiprocessing (the default of GeneratorDataset) starts no process.
    return count if not own or getattr(node, "python_multiprocessing", False) else 1


def _operations(node: ds.Dataset) -> Iterator[Any]:
    for operation in getattr(node, "operations", (node,)):
        yield from _inner(operation)


def _inner(operation: Any) -> Iterator[Any]:
    # Compose holds a list and wraps functions; a user's class of the same name does not count.
    name = type(operation).__name__ if _of_mindspore(operation) else ""
    if name == "Compose":
        for transform in operation.transforms:
            yield from _inner(transform)
    else:
        yield operation.transform if name == "FuncWrapper" else operation


def _is_fixed(operation: Any) -> bool:
    return type(operation).__name__ in _FIXED and _of_mindspore(operation)


def _of_mindspore(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "mindspore"


def _name(node: ds.Dataset) -> str:
    kind = type(node).__name__
    if kind != "MapDataset":
        return kind
    names = (getattr(operation, "__name__", type(operation).__name__) for operation in _operations(node))
    return f"{kind}({', '.join(names)})"
