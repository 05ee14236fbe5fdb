"""Lists which random operators of MindSpore resume exactly, and in which mode.

Also lists optimizers that round by their number of launches. Guarantees: the entries were measured on CPU: one process
drew twelve times, another was restored after the fourth draw. Operators without a CPU kernel were not measured. An
operator in no table counts as exact. The tables cover MindSpore 2.10: `tests/unit/mindspore/inspect/test_operators.py`
searches its code for functions that end in a random operator, and fails if another version has more.
`mindspore.nn.probability` draws through these functions. Pure values, any thread.
"""

from __future__ import annotations

import functools
import pkgutil
from typing import Any, Literal, TypeAlias

import mindspore.numpy as mnp
from mindspore import Tensor, get_context, mint, nn, ops
from mindspore.ops import Primitive

# In PYNATIVE mode these take a new seed at every call, from state that checkpoints hold. A graph freezes the seed at
# compilation and continues inside the kernel. (ops.randperm gives the same at every call, in either mode.)
_EXACT_IN_PYNATIVE = (
    "choice_with_mask",
    "dropout",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "gamma",
    "gumbel_softmax",
    "laplace",
    "log_uniform_candidate_sampler",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_gamma",
    "random_poisson",
    "rrelu",
    "shuffle",
    "standard_laplace",
    "standard_normal",
    "uniform",
)

# Two seeded runs already differ, or the state is inside the kernel in PYNATIVE mode too.
_NEVER_EXACT = (
    "bernoulli",
    "cauchy",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "log_normal",
    "multinomial_with_replacement",
    "random_categorical",
    "uniform_candidate_sampler",
)

# These have no kernel on CPU: whether their draws can be restored was never measured.
_UNMEASURED = (
    "mint.bernoulli",
    "mint.multinomial",
    "mint.nn.functional.dropout",
    "mint.nn.functional.dropout2d",
    "mint.normal",
    "mint.rand",
    "mint.rand_like",
    "mint.randint",
    "mint.randint_like",
    "mint.randn",
    "mint.randn_like",
    "mint.randperm",
    "ops.bernoulli_",
    "ops.exponential_",
    "ops.normal_",
    "ops.random_",
    "ops.speed_fusion_attention",
    "ops.uniform_",
    "Tensor.bernoulli_",
    "Tensor.exponential_",
    "Tensor.normal_",
    "Tensor.random_",
    "Tensor.uniform",
    "Tensor.uniform_",
)

# Operator objects keep their state inside the kernel.
_PRIMITIVES = {
    "Bernoulli",
    "Cauchy",
    "Dropout",
    "Dropout2D",
    "Dropout3D",
    "DropoutGenMask",
    "FractionalAvgPool",
    "FractionalMaxPool",
    "Gamma",
    "LogNormalReverse",
    "LogUniformCandidateSampler",
    "Multinomial",
    "MultinomialWithReplacement",
    "NonDeterministicInts",
    "ParameterizedTruncatedNormal",
    "Poisson",
    "RandomCategorical",
    "RandomChoiceWithMask",
    "RandomGamma",
    "RandomPoisson",
    "RandomShuffle",
    "SampleDistortedBoundingBoxV2",
    "StandardLaplace",
    "StandardNormal",
    "TruncatedNormal",
    "Uniform",
    "UniformCandidateSampler",
    "UniformInt",
    "UniformReal",
}

Exact: TypeAlias = Literal["pynative", "never", "unknown"]

# On CPU, MindSpore splits the work of a kernel in other ways in launches 6 to 15 of a process, and these then round
# otherwise; measured by `test_optimizers_that_round_by_launch_are_known`.
_BY_LAUNCH = (nn.AdamOffload, nn.RMSProp)

DROPOUTS_OF_MINT = (mint.nn.Dropout, mint.nn.Dropout2d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *DROPOUTS_OF_MINT)


@functools.cache
def functional() -> dict[int, tuple[Any, str, Exact]]:
    """Return, by identity: the function, its public name, and where it is exact."""
    found: dict[int, tuple[Any, str, Exact]] = {}
    for name in _UNMEASURED:
        function = pkgutil.resolve_name(f"mindspore:{name}")
        found[id(function)] = (function, name, "unknown")
    tables: tuple[tuple[tuple[str, ...], Exact], ...] = ((_EXACT_IN_PYNATIVE, "pynative"), (_NEVER_EXACT, "never"))
    for names, exact in tables:
        for name in names:
            for owner, prefix in ((ops, "ops"), (Tensor, "Tensor"), (mnp, "mindspore.numpy")):
                function = vars(owner).get(name)
                if function is not None:
                    found.setdefault(id(function), (function, f"{prefix}.{name}", exact))
    return found


@functools.cache
def methods() -> dict[str, Any]:
    """Return those of `functional` that are methods of a Tensor, by name."""
    random = functional()
    return {name: one for name, one in vars(Tensor).items() if id(one) in random}


def is_random_primitive(one: object) -> bool:
    """Return whether ``one`` is an operator object or class whose draws no checkpoint can restore."""
    kind = one if isinstance(one, type) else type(one)
    if not issubclass(kind, Primitive) or kind.__name__ not in _PRIMITIVES:
        return False
    return kind is one or getattr(one, "keep_prob", 0.0) != 1.0


def rounds_by_launch(one: object) -> bool:
    """Return whether ``one`` is an optimizer whose last bits depend on its number of launches in this process."""
    return isinstance(one, _BY_LAUNCH) and not getattr(one, "centered", False) and get_context("device_target") == "CPU"


def drops_nothing(dropout: nn.Cell) -> bool:
    """Return whether a MindSpore dropout cell has p = 0."""
    # nn.Dropout leaves the argument that was not given at its default: p at None, keep_prob at 0.5.
    p = getattr(dropout, "p", None)
    return p == 0 or getattr(dropout, "keep_prob", None) == 1
