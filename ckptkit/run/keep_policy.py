"""Defines which checkpoints to keep, as pure values combined with ``|``; `ckptkit.run.retention` keeps some more.

A policy reads only its arguments, so equal inputs give equal answers in every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptkit.core.save_policy import require_positive


@dataclass(frozen=True)
class Keepable:
    """Describes one committed checkpoint to a `KeepPolicy`."""

    name: str
    cycles: int
    micro_step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_certified: bool = False


def rankings(policy: KeepPolicy | None) -> list[KeepBest]:
    """Return each `KeepBest` in ``policy``."""
    if isinstance(policy, AnyKeep):
        return [best for part in policy.policies for best in rankings(part)]
    return [policy] if isinstance(policy, KeepBest) else []


class KeepPolicy:
    """Decides which committed checkpoints of a lineage to keep; ``|`` makes a policy that keeps what either keeps.

    Attributes:
        needs_metrics: Whether the answer depends on the metrics, which cost one read per checkpoint.
        needs_certificates: Whether it depends on certificates, which cost one listing per checkpoint.
    """

    needs_metrics: bool = False
    needs_certificates: bool = False

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        """Return the names to keep out of ``checkpoints``, which are ordered from oldest to newest."""
        raise NotImplementedError

    def __or__(self, other: KeepPolicy) -> KeepPolicy:
        return AnyKeep((self, other))


class AnyKeep(KeepPolicy):
    """Keeps what any of ``policies`` keeps; the result of ``|``."""

    def __init__(self, policies: Sequence[KeepPolicy]) -> None:
        self.policies = tuple(policies)
        self.needs_metrics = any(policy.needs_metrics for policy in policies)
        self.needs_certificates = any(policy.needs_certificates for policy in policies)

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        return frozenset().union(*(policy.keeps(checkpoints) for policy in self.policies))


@dataclass(frozen=True)
class KeepLatest(KeepPolicy):
    """Keeps the ``n`` newest. The two newest are always kept, so 1 acts as 2."""

    n: int

    def __post_init__(self) -> None:
        require_positive("KeepLatest.n", self.n)

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        """Return the newest ``n`` names."""
        return frozenset([checkpoint.name for checkpoint in checkpoints[-self.n :]])


@dataclass(frozen=True)
class KeepEvery(KeepPolicy):
    """Keeps permanently each checkpoint at a boundary whose cycle number is a multiple of ``optimizer_steps``."""

    optimizer_steps: int

    def __post_init__(self) -> None:
        require_positive("KeepEvery.optimizer_steps", self.optimizer_steps)

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        """Return the names at a boundary that is a multiple."""
        return frozenset(
            checkpoint.name
            for checkpoint in checkpoints
            if checkpoint.micro_step == 0 and checkpoint.cycles > 0 and checkpoint.cycles % self.optimizer_steps == 0
        )


@dataclass(frozen=True)
class KeepCertified(KeepPolicy):
    """Keeps the ``n`` newest that ``ckptkit replay --record`` has certified, as of when older ones are removed."""

    n: int
    needs_certificates = True

    def __post_init__(self) -> None:
        require_positive("KeepCertified.n", self.n)

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        """Return the newest ``n`` names that are certified."""
        return frozenset([checkpoint.name for checkpoint in checkpoints if checkpoint.is_certified][-self.n :])


@dataclass(frozen=True)
class KeepBest(KeepPolicy):
    """Keeps the ``n`` best by ``metric``, of equals the newer; ignores checkpoints without the metric or with NaN.

    Args:
        n: Number to keep.
        metric: Name among the metrics of the save; ``Model.fit`` gives its own and ``eval_loss``.
        mode: ``"max"`` if more is better, ``"min"`` if less is.
    """

    n: int
    metric: str
    mode: Literal["max", "min"]
    needs_metrics = True

    def __post_init__(self) -> None:
        require_positive("KeepBest.n", self.n)
        if self.mode not in ("max", "min"):
            raise ValueError(f"KeepBest.mode must be 'max' or 'min', got {self.mode!r}")

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        """Return the best ``n`` names that have the metric."""
        sign = 1.0 if self.mode == "max" else -1.0
        scored = [
            (sign * checkpoint.metrics[self.metric], age, checkpoint.name)
            for age, checkpoint in enumerate(checkpoints)
            if not math.isnan(checkpoint.metrics.get(self.metric, math.nan))
        ]
        return frozenset(name for _, _, name in sorted(scored)[-self.n :])
