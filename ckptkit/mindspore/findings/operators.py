"""Which random operators of MindSpore resume exactly, and in which mode.

Guarantees: what is listed was measured on CPU with one process drawing twelve times and another one restored
after the fourth. An operator in neither table is taken for exact. Pure values, any thread.
"""

from __future__ import annotations

import functools
from typing import Any

from mindspore import Tensor, nn, ops
from mindspore.ops import Primitive

# In PYNATIVE they take a new seed at every call, from state that checkpoints hold. A graph freezes the seed when
# it is compiled and goes on inside of the kernel. (ops.randperm gives the same at every call, in either mode.)
_EXACT_IN_PYNATIVE = (
    "choice_with_mask",
    "dropout",
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

# Two seeded runs already differ, or the state is inside of the kernel in PYNATIVE, too.
_NEVER_EXACT = (
    "bernoulli",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "multinomial_with_replacement",
    "random_categorical",
    "uniform_candidate_sampler",
)

# Operator objects have their state inside of the kernel.
_PRIMITIVES = {
    "Bernoulli",
    "Dropout",
    "Dropout2D",
    "Dropout3D",
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
    "StandardLaplace",
    "StandardNormal",
    "TruncatedNormal",
    "Uniform",
    "UniformCandidateSampler",
    "UniformInt",
    "UniformReal",
}

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@functools.cache
def functional() -> dict[int, tuple[Any, str, bool]]:
    """By identity: the function, its public name, and whether it is exact in PYNATIVE."""
    found = {}
    for names, exact in ((_EXACT_IN_PYNATIVE, True), (_NEVER_EXACT, False)):
        for name in names:
            for owner, prefix in ((ops, "ops"), (Tensor, "Tensor")):
                function = vars(owner).get(name)
                if function is not None:
                    found[id(function)] = (function, f"{prefix}.{name}", exact)
    return found


def is_random_primitive(one: object) -> bool:
    """Whether it is an operator object, or its class, whose draws no checkpoint brings back."""
    kind = one if isinstance(one, type) else type(one)
    if not issubclass(kind, Primitive) or kind.__name__ not in _PRIMITIVES:
        return False
    return kind is one or getattr(one, "keep_prob", 0.0) != 1.0


def drops_nothing(dropout: nn.Cell) -> bool:
    """Whether a dropout cell of MindSpore's has p = 0."""
    # nn.Dropout leaves the argument that was not given at its default: p at None, keep_prob at 0.5.
    p = getattr(dropout, "p", None)
    return p == 0 or getattr(dropout, "keep_prob", None) == 1
