"""``loss_scaler``: bits as without one, and an overflow anywhere in a cycle skips its update."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn, ops
from support.integers import Linear, Tokens, momentum, rows
from support.training import Job, accumulation_cell, begin_process, checkpoints, each_mode, samples, survived, tensors

import ckptkit as ck

WINDOW = 3
SCALERS = {
    "amp.StaticLossScaler": lambda: amp.StaticLossScaler(1024),
    "amp.DynamicLossScaler": lambda: amp.DynamicLossScaler(1024, 2, WINDOW),
    "nn.DynamicLossScaleUpdateCell": lambda: nn.DynamicLossScaleUpdateCell(1024, 2, WINDOW),
    "nn.FixedLossScaleUpdateCell": lambda: nn.FixedLossScaleUpdateCell(1024),
}
DYNAMIC = [name for name in SCALERS if "Dynamic" in name]
HUGE = np.full_like(rows(4), 3e38)  # its gradient is finite, and is not once it is scaled


def build(k=3, network=Linear, **options):
    network = network()
    return ck.AccumulationTrainCell(network, momentum(network), k, **options).set_train()


def learned(cell):
    return {name: bits for name, bits in tensors(cell).items() if name in ("w", "moments.w", "global_step")}


def scale_of(cell):
    return float(cell.loss_scale.scale.asnumpy())


@each_mode
def test_overflow_in_cycle_skips_its_update(mode):
    """Without one, the bits are those of a cell without a scaler."""
    begin_process(mode=mode)
    scalers = SCALERS if mode == "pynative" else DYNAMIC
    for number, scaler in enumerate(scalers):
        cell, plain = build(loss_scaler=SCALERS[scaler]()), build()
        for seed in range(3):
            batch = ms.Tensor(rows(4, seed))
            assert cell(batch).asnumpy().tobytes() == plain(batch).asnumpy().tobytes(), scaler
            assert cell.counters == plain.counters, scaler
            assert learned(cell) == learned(plain), scaler
            assert tensors(cell)["accum.w"] == tensors(plain)["accum.w"], scaler  # unscaled
        assert cell.updated
        before, scale = learned(cell), scale_of(cell)
        for micro_step in range(3):
            cell(ms.Tensor(HUGE if micro_step == number % 3 else rows(4)))
        assert not cell.updated, scaler
        assert learned(cell) == before, scaler
        assert not any(any(one.asnumpy().tobytes()) for one in cell.accumulators), scaler
        assert (cell.counters.cycles, cell.counters.updates, cell.counters.micro_step) == (2, 1, 0), scaler
        assert scale_of(cell) == (scale / 2 if scaler in DYNAMIC else scale), scaler
        for seed in range(3):
            cell(ms.Tensor(rows(4, seed)))
        assert cell.updated, scaler
        assert learned(cell) != before, scaler


@pytest.mark.parametrize("scaler", DYNAMIC)
def test_scale_changes_once_per_cycle_by_scaler(scaler):
    cell, alone = build(loss_scaler=SCALERS[scaler]()), SCALERS[scaler]()
    expected = ms.Parameter(ms.Tensor(1024, ms.float32), name="expected")
    overflows = [False] * 4 + [True, True, False, True] + [False] * 4
    scales = []
    for overflow in overflows:
        for micro_step in range(3):
            cell(ms.Tensor(HUGE if overflow and micro_step == 1 else rows(4)))
        if isinstance(alone, nn.Cell):
            alone(expected, ms.Tensor(overflow))
        else:
            alone.adjust(ms.Tensor(not overflow))
            expected = alone.scale_value
        scales.append(float(expected.asnumpy()))
        assert scale_of(cell) == scales[-1]
    assert len(set(scales)) > 3
    assert cell.counters.updates == overflows.count(False)


def test_skipped_update_leaves_the_schedule_alone():
    """K is a function of the updates, and an overflow is none."""
    cell = build({0: 2, 1: 3}, loss_scaler=amp.DynamicLossScaler(1024, 2, WINDOW))
    for data in (HUGE, rows(4)):
        cell(ms.Tensor(data))
    assert (cell.counters.cycles, cell.counters.updates, cell.accumulation_steps) == (1, 0, 2)
    for seed in range(2):
        cell(ms.Tensor(rows(4, seed)))
    assert (cell.counters.cycles, cell.counters.updates, cell.accumulation_steps) == (2, 1, 3)


def test_a_scaler_goes_with_weights():
    mask = ms.Tensor(np.array([1, 0, 1, 1], np.float32))
    scaled = build(network=Tokens, normalize="weights", loss_scaler=amp.StaticLossScaler(64))
    plain = build(network=Tokens, normalize="weights")
    for seed in range(6):
        batch = ms.Tensor(rows(4, seed))
        assert scaled(batch, mask).asnumpy().tobytes() == plain(batch, mask).asnumpy().tobytes()
        assert learned(scaled) == learned(plain)


def test_what_is_no_scaler_is_refused():
    for scaler in (1024, ms.Tensor(4.0), nn.Dense(2, 2), "dynamic"):
        with pytest.raises(TypeError, match=r"loss_scaler must be an amp\.StaticLossScaler"):
            build(loss_scaler=scaler)


class Exploding(nn.Cell):
    """Overflows, when scaled, on the one sample whose first feature is the largest."""

    def __init__(self):
        super().__init__()
        self.out = nn.Dense(6, 3)
        self.below = float(np.sort(samples()["x"][:, 0])[-2])

    def construct(self, x, y):
        large = ops.cast(x[:, 0] > self.below, ms.float32).max()
        return ops.square(self.out(x) - y).mean() * (1 + large * 1e37)


@each_mode
@pytest.mark.parametrize("scaler", DYNAMIC)
def test_resumes_exactly_around_overflows(tmp_path, scaler, mode):
    def cell():
        return accumulation_cell(3, network=Exploding, loss_scaler=SCALERS[scaler](), remainder="flush")

    full = Job(cell=cell, mode=mode)
    expected = full.started(checkpoints(tmp_path / "full"), 2).steps
    assert full.cell.counters.cycles - full.cell.counters.updates == 2  # one overflow in each epoch
    steps, _ = survived(tmp_path / "killed", (3, 9, 12), 2, cell=cell, mode=mode)
    assert steps == expected
