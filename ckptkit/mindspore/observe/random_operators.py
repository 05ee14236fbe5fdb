"""Names the random operators of a training whose draws no checkpoint can repeat.

The tables were measured on CPU with MindSpore 2.10: one process drew twelve times, another was restored after the
fourth draw. An operator in no table counts as exact; `test_random_operators.py` fails if MindSpore has others.
Guarantees: changes nothing, runs no user code. Main thread only.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.nn.probability.distribution import Distribution

from ckptkit.core.text import some
from ckptkit.mindspore.nn.dropout import drops_nothing
from ckptkit.mindspore.nn.sequential import cells_of
from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.named_objects import GENERATORS, UNKNOWN, named_objects, owner_of
from ckptkit.mindspore.observe.users import is_of_users
from ckptkit.mindspore.parameters.memory import is_compiled

_OURS = "Use ckptkit.nn.Dropout, or a mask that the data pipeline makes"
_NETWORK = "Use ckptkit.nn.Dropout, or ckptkit.nn.replace_dropout(network) for a ready-made network"
_UNEQUAL = "two runs with one seed already draw different masks, restarted or not"
_INSIDE = "the state of its generator is inside the operator, where ckptkit cannot read it"
_NO_KERNEL = "it is not tested whether its draws can be restored, because it has no kernel on CPU"
_FROZEN = "a compiled graph keeps the seed that it was compiled with, and the state of its generator inside"
_DRAWN_ONCE = "a graph draws it once, when it is compiled, and a resumed run compiles again"
_HASH = "the hash of a text is another one in each process"
_UNSEEDED = "it makes a generator without a seed, so that no two runs agree"
_ROUNDS = "in launches 6 to 15 of a process its kernel may round otherwise, and a resume counts them anew"
_DOUBTS = (_NO_KERNEL, _HASH, _UNSEEDED, _ROUNDS)

_MOST_PLACES = 8  # that one sentence names
# Where MindSpore has the names, these, why they are not exact, and what to do.
_TABLES = (
    ("nn.", "Dropout", _UNEQUAL, _NETWORK),
    ("nn.", "Dropout1d Dropout2d Dropout3d", _UNEQUAL, _OURS),
    # These have no kernel on CPU: whether their draws can be restored was never measured.
    (
        "",
        """mint.bernoulli mint.multinomial mint.nn.Dropout mint.nn.Dropout2d mint.nn.functional.dropout
        mint.nn.functional.dropout2d mint.normal mint.rand mint.rand_like mint.randint mint.randint_like mint.randn
        mint.randn_like mint.randperm ops.bernoulli_ ops.exponential_ ops.normal_ ops.random_ ops.speed_fusion_attention
        ops.uniform_ Tensor.bernoulli_ Tensor.exponential_ Tensor.normal_ Tensor.random_ Tensor.uniform
        Tensor.uniform_""",
        *(_NO_KERNEL, _OURS),
    ),
    # In PYNATIVE mode these take a new seed at every call, from state that checkpoints hold. A graph freezes the seed
    # at compilation and continues inside the kernel. (ops.randperm gives the same at every call, in either mode.)
    (
        "ops. Tensor. numpy.",
        """choice_with_mask dropout fractional_max_pool2d fractional_max_pool3d gamma gumbel_softmax laplace
        log_uniform_candidate_sampler multinomial normal poisson rand rand_like randint randint_like randn randn_like
        random_gamma random_poisson rrelu shuffle standard_laplace standard_normal uniform""",
        *(_FROZEN, f"{_OURS}, or run it in PYNATIVE mode, where it is exact"),
    ),
    # Two seeded runs already differ, or the state is inside the kernel in PYNATIVE mode too.
    (
        "ops. Tensor. numpy.",
        """bernoulli cauchy dropout1d dropout2d dropout3d log_normal multinomial_with_replacement random_categorical
        uniform_candidate_sampler""",
        *(_INSIDE, _OURS),
    ),
    # Operator objects keep their state inside the kernel.
    (
        "ops. ops.operations.random_ops.",
        """Bernoulli Cauchy Dropout Dropout2D Dropout3D DropoutGenMask FractionalAvgPool FractionalMaxPool Gamma
        LogNormalReverse LogUniformCandidateSampler Multinomial MultinomialWithReplacement NonDeterministicInts
        ParameterizedTruncatedNormal Poisson RandomCategorical RandomChoiceWithMask RandomGamma RandomPoisson
        RandomShuffle SampleDistortedBoundingBoxV2 StandardLaplace StandardNormal TruncatedNormal Uniform
        UniformCandidateSampler UniformInt UniformReal""",
        *(_INSIDE, _OURS),
    ),
)


@dataclass(frozen=True)
class Finding:
    """Describes what makes a resumed run differ, or makes two runs differ even without a restart."""

    kind: Literal["operator", "pipeline", "rounding"]  # rounding: of a kernel, by its launches in a process
    where: str  # the cell or the code, such as ``network.drop (nn.Dropout)``
    why: str
    fix: str
    certain: bool = True  # a resumed run was seen to differ; otherwise it may

    def __str__(self) -> str:
        return f"{self.where}: {self.why}. {self.fix}."


def sentences(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what to say of findings; neighbours that differ only in their place share a sentence."""
    for (certain, why, fix), same in groupby(findings, lambda finding: (finding.certain, finding.why, finding.fix)):
        where = some([*dict.fromkeys(finding.where for finding in same)], _MOST_PLACES)
        yield f"The resumed run {'will' if certain else 'may'} not be bit-exact. {where}: {why}. {fix}."


@functools.cache
def random_operators() -> dict[int, tuple[str, str, str]]:
    """Return by the identity of random functions and classes: the public name, why it is not exact, what to do."""
    known: dict[int, tuple[str, str, str]] = {}
    for owners, names, why, fix in _TABLES:
        for name in map("".join, product(owners.split(" "), names.split())):
            owner, _, last = name.rpartition(".")
            value = vars(pkgutil.resolve_name(f"mindspore:{owner}")).get(last)
            known.setdefault(id(value), (name.replace("numpy.", "mindspore.numpy."), why, fix))
    known.pop(id(None), None)  # of names that another version may have
    return known


class RandomOperators:
    """Finds what cells and code compute that a resumed run cannot repeat, in the present mode.

    Args:
        cells: The trained cells, each with its name; the name of the train cell is empty.
        compiled: Whether training reaches a function that ``@ms.jit`` made, which may call these cells.

    Attributes:
        findings: Those of the cells, and of what was read since.
    """

    def __init__(self, cells: Iterable[tuple[str, nn.Cell]], *, compiled: bool = False) -> None:
        self.in_graph = ms.get_context("mode") == ms.GRAPH_MODE
        self._read: dict[int, nn.Cell] = {}  # holds the cells, so that no id is reused
        self.findings: dict[Finding, None] = {}
        roots = [*cells]
        self._trained = {id(inner.cell): inner.cell for _, root in roots for inner in cells_of(root)}
        # MindSpore's optimizers are compiled, and call no cell of the user's.
        is_jit = any(is_of_users(cell) and is_compiled(type(cell).construct) for cell in self._trained.values())
        self._compiles = self.in_graph or compiled or is_jit
        for name, root in roots:
            self.read(root, name, certain=True)

    def read(self, value: Any, where: str, *, compiled: bool = False, certain: bool = False) -> None:
        """Find it in a cell, or in a function or a running frame."""
        if not issubclass(type(value), nn.Cell):
            return self._judge(value, where, compiled=compiled, certain=True)
        for inner in cells_of(value):
            cell, kind = inner.cell, type(inner.cell).__name__
            if id(cell) not in self._read:
                self._read[id(cell)] = cell
                path = ".".join(filter(None, (where, inner.name))) or "the train cell"
                prefix = "nn." if getattr(nn, kind, None) is type(cell) else ""
                self._read_cell(cell, f"{path} ({prefix}{kind})", certain=certain)

    def _read_cell(self, cell: nn.Cell, where: str, *, certain: bool) -> None:
        random = next((kind for kind in type(cell).__mro__ if id(kind) in random_operators()), None)
        if random is not None:
            if not drops_nothing(cell) and (certain or cell.training):
                self._add(where, *random_operators()[id(random)][1:], certain=certain)
            return
        is_on_cpu = ms.get_context("device_target") == "CPU"
        if isinstance(cell, (nn.AdamOffload, nn.RMSProp)) and not getattr(cell, "centered", False) and is_on_cpu:
            # MindSpore splits the work of their kernels in other ways there
            fix = "Use nn.Adam, nn.RMSProp(centered=True) or mindspore.experimental.optim.RMSprop"
            self._add(where, _ROUNDS, fix, certain=False)
        for name, value in own_attributes(cell).items():
            if id(type(value)) in random_operators():
                operator, *cause = random_operators()[id(type(value))]
                self._add(f"{where}: {name} ({operator})", *cause, certain=certain)
        if isinstance(cell, nn.MultiheadAttention) and cell.dropout and self._compiles:
            self._add(f"{where}: its dropout={cell.dropout}", _FROZEN, _OURS, certain=certain)
        if not isinstance(cell, Distribution):  # that one's construct names all that it can do
            construct = own_attributes(cell).get("construct", types.MethodType(type(cell).construct, cell))
            self._judge(construct, where, compiled=self._compiles, certain=certain, of_cell=True)

    def _judge(self, code: Any, where: str, *, compiled: bool, certain: bool, of_cell: bool = False) -> None:
        for named in named_objects(code, compiled=compiled):
            value = named.value
            if issubclass(type(value), nn.Cell) and id(value) not in self._trained:  # isinstance() asks the object
                self.read(value, f"{where}: {named.name}")
            if value is UNKNOWN and of_cell:  # the method of an argument, which is a tensor
                value = vars(ms.Tensor).get(named.name)
            name, why, fix = random_operators().get(id(value), (named.name, "", _OURS))
            if issubclass(type(value), type) and not of_cell:
                why = ""  # the object that it makes is judged
            elif named.compiled and issubclass(type(owner_of(value)), GENERATORS):
                why = _DRAWN_ONCE
            elif value is hash and sys.flags.hash_randomization and not named.where.startswith("__hash__"):
                why, fix = _HASH, "Use zlib.crc32, or set PYTHONHASHSEED"
            elif value is np.random.default_rng and named.is_called_bare:
                why, fix = _UNSEEDED, "Give it a seed"
            if why and (why != _FROZEN or named.compiled):
                self._add(f"{where}: {name} in {named.where}", why, fix, certain=certain)

    def _add(self, where: str, why: str, fix: str, *, certain: bool) -> None:
        is_doubt = why in _DOUBTS or (why in (_FROZEN, _DRAWN_ONCE) and not self.in_graph)
        kind: Any = "rounding" if why == _ROUNDS else "operator"
        self.findings[Finding(kind, where, why, fix, certain and not is_doubt)] = None
