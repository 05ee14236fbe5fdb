import math
from dataclasses import replace

import pytest

from ckptkit.run.keep_policy import Keepable, KeepBest, KeepCertified, KeepEvery, KeepLatest


def keepables(*rows) -> list[Keepable]:
    """Rows of (cycles, micro_step, metrics), oldest first; named by their place."""
    return [
        Keepable(str(place), cycles, micro_step, dict(metrics or {}))
        for place, (cycles, micro_step, metrics) in enumerate(rows)
    ]


PLAIN = keepables(*((cycles, 0, None) for cycles in range(1, 9)))
MIXED = keepables((2, 0, None), (2, 3, None), (3, 1, None), (4, 0, None), (6, 0, None), (6, 2, None))
LOSSES = keepables(*((n, 0, {"loss": loss}) for n, loss in enumerate([0.5, 0.2, 0.9, 0.2, 0.7])))
GAPS = keepables(*((n, 0, metrics) for n, metrics in enumerate([{"loss": math.nan}, {}, {"loss": 0.3}, {"acc": 1.0}])))
INFINITE = keepables(*((n, 0, {"loss": loss}) for n, loss in enumerate([math.inf, 1.0, -math.inf])))


def test_what_is_kept():
    some = [replace(item, is_certified=item.name in "1346") for item in PLAIN]
    equal = keepables(*((n, 0, {"loss": 1.0}) for n in range(4)))
    for policy, checkpoints, kept in [
        (KeepLatest(1), PLAIN, "7"),
        (KeepLatest(3), PLAIN, "567"),
        (KeepEvery(3), PLAIN, "25"),
        (KeepEvery(2), MIXED, "034"),
        (KeepEvery(1), keepables((0, 0, None), (0, 1, None)), ""),
        (KeepBest(1, "loss", "min"), LOSSES, "3"),
        (KeepBest(3, "loss", "min"), LOSSES, "013"),
        (KeepBest(4, "loss", "max"), LOSSES, "0234"),
        (KeepBest(5, "loss", "max"), GAPS, "2"),
        (KeepBest(1, "absent", "max"), GAPS, ""),
        (KeepBest(1, "loss", "min"), INFINITE, "2"),
        (KeepBest(1, "loss", "max"), INFINITE, "0"),
        (KeepBest(2, "loss", "max"), equal, "23"),  # ties go to the newer in both modes
        (KeepBest(2, "loss", "min"), equal, "23"),
        (KeepCertified(2), some, "46"),
        (KeepCertified(2), PLAIN, ""),
        (KeepCertified(1) | KeepLatest(1), some, "67"),
        (KeepLatest(1) | KeepEvery(4), PLAIN, "37"),
        (KeepEvery(2) | KeepLatest(1) | KeepEvery(3), PLAIN, "12357"),
    ]:
        assert policy.keeps(checkpoints) == frozenset(kept), policy


def test_keep_policies_refuse():
    for make, message in [
        (lambda: KeepLatest(0), r"KeepLatest\.n .* got 0"),
        (lambda: KeepLatest(True), r"KeepLatest\.n .* got True"),
        (lambda: KeepEvery(optimizer_steps="4"), r"KeepEvery\.optimizer_steps .* got '4'"),
        (lambda: KeepBest(0, "loss", "min"), r"KeepBest\.n .* got 0"),
        (lambda: KeepBest(1, "loss", "best"), r"KeepBest\.mode must be 'max' or 'min', got 'best'"),
        (lambda: KeepCertified(0), r"KeepCertified\.n"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
