"""Names random operators, and Python code of training data, whose draws no checkpoint can repeat.

The table was measured on CPU with MindSpore 2.10: one process drew twelve times, another was restored after the fourth
draw. An operator that is not in it counts as exact; `test_random_operators.py` fails if MindSpore has others.
Guarantees: changes nothing, creates no iterator, runs no user code. Main thread only.
"""

from __future__ import annotations

import functools
import pkgutil
import random
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.dataset.transforms.py_transforms_util import Implementation

from ckptkit.core.text import some
from ckptkit.mindspore.nn.dropout import drops_nothing
from ckptkit.mindspore.nn.sequential import cells_of
from ckptkit.mindspore.observe.named_objects import GENERATORS, UNKNOWN, attribute, named_objects, owner_of
from ckptkit.mindspore.observe.user_code import is_mindspores, is_of_users
from ckptkit.mindspore.parameters.memory import is_compiled

_UNEQUAL = "two runs with one seed already draw different masks, restarted or not"
_INSIDE = "the state of its generator is inside the operator, where ckptkit cannot read it"
_NO_KERNEL = "it is not tested whether its draws can be restored, because it has no kernel on CPU"
_FROZEN = "a compiled graph keeps the seed that it was compiled with, and the state of its generator inside"
_DRAWN_ONCE = "a graph draws it once, when it is compiled, and a resumed run compiles again"
_ROUNDS = "in launches 6 to 15 of a process its kernel may round otherwise, and a resume counts them anew"
_IN_DATA = "it draws from a generator of MindSpore's, which reading the data again does not set back"
_BY_THREADS = "it is called by several threads in no fixed order, so that no two runs agree"
_OF_PROCESS = "it draws from the process's generator: that is exact only if nothing else draws from it meanwhile"
_REPLACE = "Use ckptkit.nn.Dropout, or a mask that the data pipeline makes"
_SEEDED = "Let it draw from a generator made of (seed, epoch, index of the sample), such as ckptkit.data.sample_rng"
_FIXES = {
    _UNEQUAL: "Use ckptkit.nn.Dropout, or ckptkit.nn.replace_dropout(network) for a ready-made network",
    _FROZEN: f"{_REPLACE}, or run it in PYNATIVE mode, where it is exact",
    _ROUNDS: "Use nn.Adam, nn.RMSProp(centered=True) or mindspore.experimental.optim.RMSprop",
    _BY_THREADS: f"{_SEEDED}, or set num_parallel_workers=1 or python_multiprocessing=True",
}
_GLOBAL = (owner_of(random.random), owner_of(np.random.rand))  # the functions of the modules are methods of these
_MOST_PLACES = 8  # that one sentence names
# Where MindSpore has the names, these, and why they are not exact.
_TABLE = (
    ("nn.", "Dropout Dropout1d Dropout2d Dropout3d", _UNEQUAL),
    ("nn.", "AdamOffload RMSProp", _ROUNDS),
    ("nn.", "FractionalMaxPool2d FractionalMaxPool3d MultiheadAttention RReLU", _FROZEN),
    ("nn.probability.distribution.Distribution.", "sample", _FROZEN),
    ("nn.", "SampledSoftmaxLoss", _INSIDE),
    ("mint.nn. mint.nn.functional.", "Dropout Dropout2d dropout dropout2d", _NO_KERNEL),
    ("mint.", "bernoulli multinomial normal rand rand_like randint randint_like randn randn_like randperm", _NO_KERNEL),
    ("ops. Tensor.", "bernoulli_ exponential_ normal_ random_ speed_fusion_attention uniform_", _NO_KERNEL),
    ("Tensor.", "uniform", _NO_KERNEL),
    # In PYNATIVE mode these take a new seed at every call, from state that checkpoints hold.
    # (ops.randperm gives the same at every call, in either mode.)
    (
        "ops. Tensor. numpy.",
        """choice_with_mask dropout fractional_max_pool2d fractional_max_pool3d gamma gumbel_softmax laplace
        log_uniform_candidate_sampler multinomial normal poisson rand rand_like randint randint_like randn randn_like
        random_gamma random_poisson rrelu shuffle standard_laplace standard_normal uniform""",
        _FROZEN,
    ),
    # Functions of which two seeded runs differ in PYNATIVE mode too, and operator objects.
    (
        "ops. Tensor. numpy. ops.operations.random_ops.",
        """bernoulli cauchy dropout1d dropout2d dropout3d log_normal multinomial_with_replacement random_categorical
        uniform_candidate_sampler Bernoulli Cauchy Dropout Dropout2D Dropout3D DropoutGenMask FractionalAvgPool
        FractionalMaxPool Gamma LogNormalReverse LogUniformCandidateSampler Multinomial MultinomialWithReplacement
        NonDeterministicInts ParameterizedTruncatedNormal Poisson RandomCategorical RandomChoiceWithMask RandomGamma
        RandomPoisson RandomShuffle SampleDistortedBoundingBoxV2 StandardLaplace StandardNormal TruncatedNormal Uniform
        UniformCandidateSampler UniformInt UniformReal""",
        _INSIDE,
    ),
)


@dataclass(frozen=True)
class Finding:
    """Describes what makes a resumed run differ, or makes two runs differ even without a restart."""

    kind: str  # operator, pipeline, or rounding: of a kernel, by its launches in a process
    where: str  # the cell or the code, such as ``network.drop (nn.Dropout)``
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}. {self.fix}."


def sentences(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what to say of findings; neighbours that differ only in their place share a sentence."""
    for (why, fix), same in groupby(findings, lambda finding: (finding.why, finding.fix)):
        where = some([*dict.fromkeys(finding.where for finding in same)], _MOST_PLACES)
        yield f"The resumed run may not be bit-exact. {where}: {why}. {fix}."


@functools.cache
def random_operators() -> dict[int, tuple[str, str]]:
    """Return by the identity of random functions and classes: the public name, and why it is not exact."""
    known: dict[int, tuple[str, str]] = {}
    for owners, names, why in _TABLE:
        for name in map("".join, product(owners.split(" "), names.split())):
            owner, _, last = name.rpartition(".")
            value = vars(pkgutil.resolve_name(f"mindspore:{owner}")).get(last)
            known.setdefault(id(value), (name.replace("numpy.", "mindspore.numpy."), why))
    known.pop(id(None), None)  # of names that another version may have
    return known


class RandomOperators:
    """Finds what cells, code and data compute that a resumed run cannot repeat, in the present mode.

    Args:
        cells: The trained cells, each with its name; the name of the train cell is empty.
        compiled: Whether training reaches a function that ``@ms.jit`` made, which may call these cells.

    Attributes:
        findings: Those of the cells, and of what was read since.
    """

    def __init__(self, cells: Iterable[tuple[str, nn.Cell]], *, compiled: bool = False) -> None:
        self.in_graph = ms.get_context("mode") == ms.GRAPH_MODE
        self.findings: dict[Finding, None] = {}
        self._seen: dict[int, nn.Cell] = {}  # holds the cells, so that no id is reused
        roots = [*cells]
        trained = [inner.cell for _, root in roots for inner in cells_of(root)]
        # MindSpore's optimizers are compiled, and call no cell of the user's.
        is_jit = any(is_of_users(cell) and is_compiled(type(cell).construct) for cell in trained)
        self._compiles = self.in_graph or compiled or is_jit
        for name, root in roots:
            self._read_cells(root, name, trained=True)

    def read(self, value: Any, where: str, *, compiled: bool = False) -> None:
        """Find it in a cell that is not trained, or in a function or a running frame."""
        if issubclass(type(value), nn.Cell):  # isinstance() asks the object
            self._read_cells(value, where, trained=False)
        else:
            self._read_code(value, where, compiled=compiled)

    def read_data(self, data: Any) -> None:
        """Find it in the Python code of a pipeline, or of an iterable of the user's."""
        for where, code, threads in code_of_data(data):
            self._read_code(code, where, threads=threads)

    def _read_cells(self, root: nn.Cell, where: str, *, trained: bool) -> None:
        new = [inner for inner in cells_of(root) if id(inner.cell) not in self._seen]
        self._seen |= {id(inner.cell): inner.cell for inner in new}
        for name, cell, _ in new:
            kind = type(cell)
            prefix = "nn." if getattr(nn, kind.__name__, None) is kind else ""
            path = f"{'.'.join(filter(None, (where, name))) or 'the train cell'} ({prefix}{kind.__name__})"
            why = next((random_operators()[id(base)][1] for base in kind.__mro__ if id(base) in random_operators()), "")
            if why and (trained or cell.training) and not _draws_nothing(cell):
                self._add("operator", path, why, compiled=self._compiles)
            if not why and not is_mindspores(cell):
                self._read_code(attribute(cell, "construct"), path, compiled=self._compiles, in_cell=True)

    def _read_code(
        self, code: Any, where: str, *, compiled: bool = False, in_cell: bool = False, threads: int | None = None
    ) -> None:
        kind, known = "operator" if threads is None else "pipeline", random_operators()
        for named in named_objects(code, compiled=compiled):
            owner, value = owner_of(named.value), named.value
            value = value.__func__ if type(value) is types.MethodType else value
            if issubclass(type(value), nn.Cell):
                self._read_cells(value, f"{where}: {named.name}", trained=False)
                continue
            if value is UNKNOWN and in_cell:  # the method of an argument, which is a tensor
                value = vars(ms.Tensor).get(named.name)
            name, why = known.get(id(value)) or known.get(id(type(value))) or (named.name, "")
            if issubclass(type(value), type) and not in_cell:
                why = ""  # the object that it makes is judged
            elif why and threads is not None:
                why = _IN_DATA
            elif issubclass(type(owner), GENERATORS) and threads:
                why = _BY_THREADS if threads > 1 else _OF_PROCESS if owner in _GLOBAL else ""
            elif issubclass(type(owner), GENERATORS) and named.compiled:
                why = _DRAWN_ONCE
            if why:
                self._add(kind, f"{where}: {name} in {named.where}", why, compiled=named.compiled)

    def _add(self, kind: str, where: str, why: str, *, compiled: bool) -> None:
        # On other devices than CPU, MindSpore does not split the work of a kernel by its launches.
        is_exact = (why == _FROZEN and not compiled) or (why == _ROUNDS and ms.get_context("device_target") != "CPU")
        if not is_exact:
            fix = _FIXES.get(why, _SEEDED if kind == "pipeline" else _REPLACE)
            self.findings[Finding("rounding" if why == _ROUNDS else kind, where, why, fix)] = None


def _draws_nothing(cell: nn.Cell) -> bool:
    return drops_nothing(cell) or getattr(cell, "dropout", None) == 0 or getattr(cell, "centered", False)


def code_of_data(data: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield the Python code of data: where it is, what is called, by how many threads of a process (0: by the loop)."""
    name = type(data).__name__
    if not isinstance(data, ds.Dataset):
        yield from ((name, code, 0) for code in _called_of(data))
        return
    threads = getattr(data, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()
    threads = 1 if getattr(data, "python_multiprocessing", False) else threads
    # Names that are private to MindSpore are optional: a test fails if it moves them.
    source, *given, sampler = (getattr(data, key, None) for key in ("source", "per_batch_map", "predicate", "sampler"))
    for part in (*_operations(getattr(data, "operations", None)), source, *given):
        yield from ((name, code, threads) for code in _called_of(part))
    yield from ((name, code, 1) for code in _called_of(sampler))
    for child in data.children:
        yield from code_of_data(child)


def _operations(given: Any) -> Iterator[Any]:
    """Yield the operations of a map, and what those of MindSpore run in Python."""
    in_python = False  # operations that can run there or elsewhere do so after one that has to
    for operation in given or ():
        body = getattr(operation, "implementation", None) if is_mindspores(operation) else Implementation.C
        in_python = body == Implementation.PY or (in_python and body is None)
        yield from (operation, attribute(operation, "_execute_py") if in_python else None)


def _called_of(part: Any) -> Iterator[Any]:
    """Yield the user's code that asking a part of a pipeline for items, or calling it, runs."""
    if type(part) in (types.FunctionType, types.MethodType, functools.partial):
        yield part
    elif is_mindspores(part):  # which may wrap functions and samplers of the user's
        inner = [*_operations(getattr(part, "transforms", None))]
        inner += [getattr(part, name, None) for name in ("transform", "sampler")]
        yield from (code for wrapped in inner for code in _called_of(wrapped))
    else:
        methods = (attribute(part, name) for name in ("__getitem__", "__iter__", "__next__", "__call__"))
        yield from (method for method in methods if type(method) is types.MethodType)
