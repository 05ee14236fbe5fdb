"""What a ``mindspore.dataset`` pipeline is made of, and what of it decides how it can be positioned.

Guarantees: `is_fast` is True only for what was measured to be exact, or what the user declared; `drawing_workers`
lists only operations whose output depends on their number of workers. Reads the pipeline, changes nothing.
Main thread only.

Public attributes of the pipeline's nodes where there are any. ``operations``, ``per_batch_map``,
``batch_size_func`` and ``python_multiprocessing`` are undocumented; where they cannot be seen any
more, a node counts as the user's code and is replayed, and tests/with_mindspore/test_dataset.py fails.
So is what is behind a function of ``get_sync_notifiers()``; tests/with_mindspore/test_positioning.py fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore.dataset as ds

from ckptkit.mindspore.data.global_order import GlobalOrder, GlobalSampler
from ckptkit.mindspore.data.sampler import Augmented, EpochSampler

# Not what is derived from them, whose order nobody knows.
_CARRY_EPOCHS = (EpochSampler, GlobalSampler)

# Exact with fast recovery, measured one by one. Anything else is replayed, which is exact for every pipeline
# that is deterministic at all. (MindSpore's own default is fast for all, and then random maps silently differ.)
_FAST = {
    "NumpySlicesDataset",
    "MnistDataset",
    "ImageFolderDataset",
    "MindDataset",
    "BatchDataset",
    "RepeatDataset",
    "ProjectDataset",
    "RenameDataset",
    "ShuffleDataset",
    "ConcatDataset",
    "ZipDataset",
    "SkipDataset",
    "TakeDataset",
}
# With one epoch of what is below per epoch of theirs; but code in a BatchDataset is told the epoch's number.
_SAME_IN_EVERY_EPOCH = {"GeneratorDataset", "MapDataset", "ProjectDataset", "RenameDataset", "BatchDataset"}
# Operations of MindSpore's that neither draw nor remember.
_FIXED = {
    "CenterCrop",
    "Decode",
    "HWC2CHW",
    "Normalize",
    "OneHot",
    "Pad",
    "Rescale",
    "Resize",
    "TypeCast",
}


def nodes(dataset: ds.Dataset) -> Iterator[ds.Dataset]:
    """Every node, the root first."""
    yield dataset
    for child in dataset.children:
        yield from nodes(child)


def describe(dataset: ds.Dataset) -> str:
    """The pipeline in one line, from its root to its sources."""
    return " <- ".join(_name(node) for node in nodes(dataset))


def is_fast(dataset: ds.Dataset, *, stateless: bool) -> bool:
    """Whether it may begin anywhere without replaying; ``stateless`` is the user's word for the code in it."""
    return all(_is_fast(node, stateless) for node in nodes(dataset))


def drawing_workers(dataset: ds.Dataset, *, stateless: bool) -> list[tuple[str, int]]:
    """Name and number of workers of each operation whose output depends on that number, the root first.

    The user's Python code counts 1 unless it runs in processes of its own, which MindSpore seeds one by one.
    """
    return [
        (_name(node), _workers(node, own=_is_own(node)))
        for node in nodes(dataset)
        if not _is_fast(node, stateless) and (_is_own(node) or _draws_in_workers(node))
    ]


def carried_seeds(dataset: ds.Dataset) -> list[int]:
    """Seeds of `Augmented`, `EpochSampler` and `GlobalSampler` in it, which MindSpore's own seed does not move."""
    holders = [
        one for node in nodes(dataset) for one in (getattr(node, "sampler", None), getattr(node, "source", None))
    ]
    return [int(one.seed) for one in holders if isinstance(one, (*_CARRY_EPOCHS, Augmented))]


def samplers_that_carry_epochs(dataset: ds.Dataset) -> list[EpochSampler | GlobalSampler]:
    """All samplers of a pipeline in which nothing but they differs from epoch to epoch; of any other, none."""
    kinds = {type(node).__name__ for node in nodes(dataset)}
    samplers = [node.sampler for node in nodes(dataset) if hasattr(node, "sampler")]
    numbered = any(type(node).__name__ == "BatchDataset" and _is_own(node) for node in nodes(dataset))
    whole = kinds <= _SAME_IN_EVERY_EPOCH and all(type(sampler) in _CARRY_EPOCHS for sampler in samplers)
    return samplers if whole and not numbered else []


def global_order(dataset: ds.Dataset) -> GlobalOrder | None:
    """The order over all ranks that alone decides which batches it gives; None where there is none such."""
    samplers = samplers_that_carry_epochs(dataset)
    found = samplers[0] if len(samplers) == 1 else None
    return found.order if isinstance(found, GlobalSampler) else None


def has_shuffle_buffer(dataset: ds.Dataset) -> bool:
    """Whether MindSpore has to read what it skips, for one of its nodes."""
    return any(type(node).__name__ == "ShuffleDataset" for node in nodes(dataset))


def told_by_training(dataset: ds.Dataset) -> list[str]:
    """Names of the conditions in it whose ``sync_update`` calls code of the user's."""
    pairs = {name: getattr(let_go, "__self__", None) for name, let_go in dataset.get_sync_notifiers().items()}
    return [name for name, pair in pairs.items() if getattr(pair, "callback", None) is not None]


def python_code_here(dataset: ds.Dataset) -> list[str]:
    """Types of the nodes in which code may run in this process that draws from its global generators."""
    return sorted({type(node).__name__ for node in nodes(dataset) if _runs_here(node)})


def _is_fast(node: ds.Dataset, stateless: bool) -> bool:
    kind = type(node).__name__
    if not _of_mindspore(node) or not _is_fast_sampler(getattr(node, "sampler", None), stateless):
        return False
    if kind == "GeneratorDataset":
        return stateless or _is_augmented(node)
    if kind == "FilterDataset":
        return stateless
    if kind == "BatchDataset":
        return stateless or not _is_own(node)
    if kind == "MapDataset":
        fixed = all(_is_fixed(one) or (stateless and not _of_mindspore(one)) for one in _operations(node))
        return fixed and not getattr(node, "callbacks", None)
    return kind in _FAST


def _is_fast_sampler(sampler: Any, stateless: bool) -> bool:
    # A sampler of the user's own is Python code that may be random; where it does not inherit from ds.Sampler,
    # MindSpore wraps it in an IterSampler, which does.
    if sampler is None or type(sampler) in _CARRY_EPOCHS:
        return True
    if isinstance(sampler, ds.Sampler) or not _of_mindspore(sampler):
        return stateless
    return _is_fast_sampler(getattr(sampler, "child_sampler", None), stateless)


def _is_augmented(node: ds.Dataset) -> bool:
    return isinstance(node.source, Augmented) and type(node.sampler) in _CARRY_EPOCHS


def _is_own(node: ds.Dataset) -> bool:
    """Whether it runs code of the user's, a sampler apart."""
    kind = type(node).__name__
    if kind == "BatchDataset":
        return getattr(node, "per_batch_map", node) is not None or getattr(node, "batch_size_func", node) is not None
    if kind == "MapDataset":
        return not all(_of_mindspore(one) for one in _operations(node))
    return kind in ("GeneratorDataset", "FilterDataset") or not _of_mindspore(node)


def _runs_here(node: ds.Dataset) -> bool:
    if not _is_fast_sampler(getattr(node, "sampler", None), stateless=False):
        return True
    if _is_fast(node, stateless=False):
        return False
    # Some of MindSpore's operations are Python code as well, and which ones is decided when they run.
    python = _is_own(node) or type(node).__name__ == "MapDataset"
    return python and (_workers(node, own=True) == 1 or getattr(node, "batch_size_func", None) is not None)


def _draws_in_workers(node: ds.Dataset) -> bool:
    return type(node).__name__ == "MapDataset" and not all(_is_fixed(one) for one in _operations(node))


def _workers(node: ds.Dataset, *, own: bool) -> int:
    count = int(getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers())
    # With one worker, python_multiprocessing (the default of GeneratorDataset) starts no process.
    return count if not own or getattr(node, "python_multiprocessing", False) else 1


def _operations(node: ds.Dataset) -> Iterator[Any]:
    for one in getattr(node, "operations", (node,)):
        yield from _inner(one)


def _inner(operation: Any) -> Iterator[Any]:
    # Compose holds a list and wraps functions; what only looks like one of the two is not of MindSpore.
    name = type(operation).__name__ if _of_mindspore(operation) else ""
    if name == "Compose":
        for one in operation.transforms:
            yield from _inner(one)
    else:
        yield operation.transform if name == "FuncWrapper" else operation


def _is_fixed(operation: Any) -> bool:
    return type(operation).__name__ in _FIXED and _of_mindspore(operation)


def _of_mindspore(one: Any) -> bool:
    return type(one).__module__.partition(".")[0] == "mindspore"


def _name(node: ds.Dataset) -> str:
    kind = type(node).__name__
    if kind != "MapDataset":
        return kind
    return f"{kind}({', '.join(getattr(one, '__name__', type(one).__name__) for one in _operations(node))})"
