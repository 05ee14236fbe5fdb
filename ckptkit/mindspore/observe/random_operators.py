"""Names the random operators of a training whose draws no checkpoint can repeat.

The tables were measured on CPU with MindSpore 2.10: one process drew twelve times, another was restored after the
fourth draw. An operator in no table counts as exact; `test_random_operators.py` fails if MindSpore has others.
Guarantees: changes nothing, runs no user code. Main thread only.
"""

from __future__ import annotations

import functools
import pkgutil
import random
import sys
import types
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn
from mindspore.nn.probability.distribution import Distribution
from mindspore.ops import Primitive

from ckptkit.mindspore.nn.dropout import drops_nothing
from ckptkit.mindspore.nn.sequential import cells_of
from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.finding import Finding
from ckptkit.mindspore.observe.named_objects import UNKNOWN, NamedObject, named_objects, owner_of
from ckptkit.mindspore.observe.users import is_mindspores

Exact: TypeAlias = Literal["pynative", "never", "unknown"]

# In PYNATIVE mode these take a new seed at every call, from state that checkpoints hold. A graph freezes the seed at
# compilation and continues inside the kernel. (ops.randperm gives the same at every call, in either mode.)
_EXACT_IN_PYNATIVE = """
choice_with_mask dropout fractional_max_pool2d fractional_max_pool3d gamma gumbel_softmax laplace
log_uniform_candidate_sampler multinomial normal poisson rand rand_like randint randint_like randn randn_like
random_gamma random_poisson rrelu shuffle standard_laplace standard_normal uniform
"""
# Two seeded runs already differ, or the state is inside the kernel in PYNATIVE mode too.
_NEVER_EXACT = """
bernoulli cauchy dropout1d dropout2d dropout3d log_normal multinomial_with_replacement random_categorical
uniform_candidate_sampler
"""
# These have no kernel on CPU: whether their draws can be restored was never measured.
_UNMEASURED = """
mint.bernoulli mint.multinomial mint.nn.functional.dropout mint.nn.functional.dropout2d mint.normal mint.rand
mint.rand_like mint.randint mint.randint_like mint.randn mint.randn_like mint.randperm ops.bernoulli_ ops.exponential_
ops.normal_ ops.random_ ops.speed_fusion_attention ops.uniform_ Tensor.bernoulli_ Tensor.exponential_ Tensor.normal_
Tensor.random_ Tensor.uniform Tensor.uniform_
"""
# Operator objects keep their state inside the kernel.
_PRIMITIVES = """
Bernoulli Cauchy Dropout Dropout2D Dropout3D DropoutGenMask FractionalAvgPool FractionalMaxPool Gamma LogNormalReverse
LogUniformCandidateSampler Multinomial MultinomialWithReplacement NonDeterministicInts ParameterizedTruncatedNormal
Poisson RandomCategorical RandomChoiceWithMask RandomGamma RandomPoisson RandomShuffle SampleDistortedBoundingBoxV2
StandardLaplace StandardNormal TruncatedNormal Uniform UniformCandidateSampler UniformInt UniformReal
"""

# On CPU, MindSpore splits the work of a kernel in other ways in launches 6 to 15 of a process, and these then round
# otherwise; measured by `test_optimizers_that_round_by_launch_are_known`.
_BY_LAUNCH = (nn.AdamOffload, nn.RMSProp)
_DROPOUTS_OF_MINT = (mint.nn.Dropout, mint.nn.Dropout2d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *_DROPOUTS_OF_MINT)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)

_OURS = "Use ckptkit.nn.Dropout, or a mask that the data pipeline makes"


_NO_CODE = compile("", "", "exec")


@functools.cache
def functional() -> dict[int, tuple[Any, str, Exact]]:
    """Return, by identity: the function, its public name, and where it is exact."""
    tables: tuple[tuple[str, Exact], ...] = ((_EXACT_IN_PYNATIVE, "pynative"), (_NEVER_EXACT, "never"))
    named: list[tuple[str, Exact]] = [(name, "unknown") for name in _UNMEASURED.split()]
    owners = ("ops", "Tensor", "numpy")
    named += [(f"{owner}.{name}", exact) for names, exact in tables for name in names.split() for owner in owners]
    functions: dict[int, tuple[Any, str, Exact]] = {}
    for name, exact in named:
        owner, _, last = name.rpartition(".")
        function = vars(pkgutil.resolve_name(f"mindspore:{owner}")).get(last)
        if function is not None:
            functions.setdefault(id(function), (function, name.replace("numpy.", "mindspore.numpy."), exact))
    return functions


def is_random_primitive(value: object) -> bool:
    """Return whether ``value`` is an operator object or class whose draws no checkpoint can restore."""
    kind = value if isinstance(value, type) else type(value)
    if not issubclass(kind, Primitive) or kind.__name__ not in _PRIMITIVES.split():
        return False
    return kind is value or getattr(value, "keep_prob", 0.0) != 1.0


@functools.cache
def _names_none(construct: Any) -> bool:
    """Return whether a function of MindSpore's has the name of no random function."""
    code = getattr(construct, "__code__", None)
    names = {name.rpartition(".")[2] for _, name, _ in functional().values()}
    return code is not None and names.isdisjoint(code.co_names)


class RandomOperators:
    """Finds what cells and code compute that a resumed run cannot repeat, in the present mode.

    Args:
        cells: The trained cells, each with its name; the name of the train cell is empty.

    Attributes:
        findings: Those of the cells, and of what was read since.
    """

    def __init__(self, cells: Iterable[tuple[str, nn.Cell]]) -> None:
        self._in_graph = ms.get_context("mode") == ms.GRAPH_MODE
        self._paths: dict[int, tuple[nn.Cell, str]] = {}  # holds the cells, so that no id is reused
        self._read: set[tuple[int, bool]] = set()
        self.findings: dict[Finding, None] = {}
        for name, root in cells:
            for inner in cells_of(root):
                path = ".".join(filter(None, (name, inner.name))) or "the train cell"
                self._paths.setdefault(id(inner.cell), (inner.cell, path))
        self._trained = {*self._paths}
        for cell, path in [*self._paths.values()]:
            if isinstance(cell, _BY_LAUNCH) and not getattr(cell, "centered", False) and _on_cpu():
                why = "in launches 6 to 15 of a process its kernel may round otherwise, and a resume counts them anew"
                fix = "Use nn.Adam, nn.RMSProp(centered=True) or mindspore.experimental.optim.RMSprop"
                self._add(Finding("rounding", f"{path} ({_kind(cell)})", why, fix, certain=False))
            self._read_cell(cell, path, compiled=False, certain=True)

    def read_code(
        self, code: Any, where: str, *, compiled: bool = False, certain: bool = True, of_cell: bool = False
    ) -> None:
        """Find it in a function, a method or a running frame; in one ``of_cell``, the arguments are tensors."""
        for named in named_objects(code, _is_read, compiled=compiled):
            if issubclass(type(named.value), nn.Cell):  # isinstance() would ask the object for its class
                self.read_named(named, where)
            else:
                self._add(
                    _operator(named, where, in_graph=named.compiled or (of_cell and self._in_graph), of_cell=of_cell),
                    certain=certain,
                )

    def read_compiled(self) -> None:
        """Find what the trained cells draw where a function under ``@ms.jit`` calls them: a doubt, as it may not."""
        for cell, path in [*self._paths.values()]:
            if id(cell) in self._trained:
                self._read_cell(cell, path, compiled=True, certain=False)

    def read_reached(self, value: Any, where: str, *, is_wrapped: bool) -> None:
        """Find it in a cell or a function of the user's that training reaches.

        Args:
            value: The cell or the function.
            where: Its path.
            is_wrapped: Whether a function of MindSpore's holds it, which compiles it in GRAPH mode.
        """
        if issubclass(type(value), nn.Cell):
            if id(value) not in self._paths:
                self.read_named(NamedObject(value, "", where, False, False, "", _NO_CODE), where)
        else:
            self.read_code(value, where, compiled=is_wrapped and self._in_graph)

    def read_named(self, named: NamedObject, where: str) -> None:
        """Find it in a cell that code names: a doubt if it is not trained, since no ``set_train`` reaches it."""
        compiled = named.compiled and not self._in_graph
        if id(named.value) in self._trained and not compiled:
            return  # it is read in any case
        for inner in cells_of(named.value):
            path = f"{where}: {named.name}{inner.name and f'.{inner.name}'}".removesuffix(": ")
            cell, path = self._paths.setdefault(id(inner.cell), (inner.cell, path))
            is_trained = id(cell) in self._trained
            if is_trained or cell.training or not isinstance(cell, DROPOUTS):
                self._read_cell(cell, path, compiled=compiled, certain=is_trained)

    def _read_cell(self, cell: nn.Cell, path: str, *, compiled: bool, certain: bool) -> None:
        if (id(cell), compiled) in self._read:
            return
        self._read.add((id(cell), compiled))
        where = f"{path} ({_kind(cell)})"
        if isinstance(cell, DROPOUTS):
            self._add(None if drops_nothing(cell) else _dropout(type(cell), where), certain=certain)
            return
        for name, value in own_attributes(cell).items():
            for item in value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,):
                if issubclass(type(item), Primitive) and is_random_primitive(item):
                    self._add(_inside(f"{where}: {name} (ops.{type(item).__name__})"), certain=certain)
        if isinstance(cell, nn.MultiheadAttention) and cell.dropout and (compiled or self._in_graph):
            self._add(_frozen(f"{where}: its dropout={cell.dropout}"), certain=certain)
        # A distribution's construct names all that it can do: its calls are read instead.
        if not isinstance(cell, Distribution) and not (is_mindspores(cell) and _names_none(type(cell).construct)):
            construct = own_attributes(cell).get("construct", types.MethodType(type(cell).construct, cell))
            self.read_code(construct, where, compiled=compiled, certain=certain, of_cell=True)

    def _add(self, finding: Finding | None, *, certain: bool = True) -> None:
        if finding is not None:
            self.findings[replace(finding, certain=finding.certain and certain)] = None


def _operator(  # noqa: PLR0911 - one case per kind
    named: NamedObject, where: str, *, in_graph: bool, of_cell: bool
) -> Finding | None:
    value, place = named.value, f"{where}: {named.name} in {named.where}"
    if value is UNKNOWN and of_cell:  # the method of an argument
        value = vars(Tensor).get(named.name)
    if of_cell and issubclass(type(value), type):  # what is made elsewhere is judged as an object
        if issubclass(value, DROPOUTS):
            return _dropout(value, place)
        return _inside(place) if is_random_primitive(value) else None
    if (of_cell or named.compiled) and in_graph and issubclass(type(owner_of(value)), GENERATORS):
        why = "a graph draws it once, when it is compiled, and a resumed run compiles again"
        return Finding("operator", place, why, _OURS)
    if value is np.random.default_rng and named.without_seed:
        why = "it makes a generator without a seed, so that no two runs agree"
        return Finding("operator", place, why, "Give it a seed", certain=False)
    if value is hash and sys.flags.hash_randomization and "__hash__" not in named.where:  # whose value Python uses
        why = "the hash of a text is another one in each process"
        return Finding("operator", place, why, "Use zlib.crc32, or set PYTHONHASHSEED", certain=False)
    _, name, exact = functional().get(id(value), (None, "", "pynative"))
    place = f"{where}: {name} in {named.where}"
    if exact == "pynative":
        return _frozen(place) if name and in_graph else None
    return _unmeasured(place) if exact == "unknown" else _inside(place)


def _dropout(kind: type, where: str) -> Finding:
    if issubclass(kind, _DROPOUTS_OF_MINT):
        return _unmeasured(where)
    network = "Use ckptkit.nn.Dropout, or ckptkit.nn.replace_dropout(network) for a ready-made network"
    why = "two runs with one seed already draw different masks, restarted or not"
    return Finding("operator", where, why, network if issubclass(kind, nn.Dropout) else _OURS)


def _inside(where: str) -> Finding:
    why = "the state of its generator is inside the operator, where ckptkit cannot read it"
    return Finding("operator", where, why, _OURS)


def _unmeasured(where: str) -> Finding:
    why = "it is not tested whether its draws can be restored, because it has no kernel on CPU"
    return Finding("operator", where, why, _OURS, certain=False)


def _frozen(where: str) -> Finding:
    why = "a compiled graph keeps the seed that it was compiled with, and the state of its generator inside"
    return Finding("operator", where, why, f"{_OURS}, or run it in PYNATIVE mode, where it is exact")


def _is_read(module: str) -> bool:
    if module.startswith("mindspore.nn.probability"):
        return True
    return module.partition(".")[0] not in ("mindspore", "numpy", "ckptkit", *sys.stdlib_module_names)


def _kind(cell: nn.Cell) -> str:
    kind = type(cell)
    return f"nn.{kind.__name__}" if getattr(nn, kind.__name__, None) is kind else kind.__name__


def _on_cpu() -> bool:
    return bool(ms.get_context("device_target") == "CPU")
