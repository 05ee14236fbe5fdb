"""What a cycle adds up and divides by, with a loss scaler or without, and what becomes of one that an epoch ends in."""

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn, ops
from support.training import (
    SIZE,
    Job,
    K,
    accumulation_cell,
    begin_process,
    both_modes,
    checkpoints,
    crashed,
    each_mode,
    pipeline,
    samples,
    survived,
    tensors,
)

import ckptkit as ck
from ckptkit.mindspore.train.cell import mark_half_restored, refuse_half_restored

# Integers that are small, and divisors that are powers of two: sums in another order have the same bits.
WIDTH = 5


class Linear(nn.Cell):
    """The mean over the micro-batch of ``w . x``; its gradient is the mean of ``x``."""

    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(ms.Tensor(np.arange(WIDTH), ms.float32), name="w")

    def construct(self, x):
        return ops.reduce_sum(self.w * x, 1).mean()


class Tokens(Linear):
    """The sum over the tokens of ``w . x``, and their number; a token is a row whose mask is 1."""

    def construct(self, x, mask):
        return ops.reduce_sum(self.w * x * ops.reshape(mask, (-1, 1))), ops.reduce_sum(mask)


def rows(count, seed=0):
    return np.random.default_rng(seed).integers(-8, 9, (count, WIDTH)).astype(np.float32)


def momentum(network):
    # No decay and a power of two: the updates are exact, too.
    return nn.Momentum(network.trainable_params(), 0.25, 0.5)


def build(k=3, network=Linear, **options):
    network = network()
    return ck.AccumulationTrainCell(network, momentum(network), k, **options).set_train()


def learned(cell):
    return {name: bits for name, bits in tensors(cell).items() if name in ("w", "moments.w", "global_step")}


EQUAL = [4, 4, 4, 4]  # samples of the micro-batches of a cycle
UNEQUAL = [8, 4, 2, 2]


def split(sizes, *columns):
    ends = np.cumsum(sizes)
    return [
        tuple(ms.Tensor(column[end - size : end]) for column in columns) for size, end in zip(sizes, ends, strict=True)
    ]


def trained(network, sizes, columns, cycles=3, **options):
    network = network()
    cell = ck.AccumulationTrainCell(network, momentum(network), len(sizes), **options).set_train()
    for _ in range(cycles):
        for batch in split(sizes, *columns):
            cell(*batch)
    assert cell.counters.updates == cycles
    return learned(cell)


def stock(network, columns, cycles=3):
    cell = nn.TrainOneStepCell(network, momentum(network)).set_train()
    for _ in range(cycles):
        cell(*(ms.Tensor(column) for column in columns))
    return learned(cell)


@both_modes
def test_k_micro_batches_are_one_large_batch(mode):
    """By their samples, also where their sizes differ."""
    begin_process(mode=mode)
    columns = [rows(16)]
    large = stock(Linear(), columns)
    assert trained(Linear, EQUAL, columns) == large
    assert trained(Linear, UNEQUAL, columns, normalize="samples") == large
    assert trained(Linear, EQUAL, columns, normalize="samples") == large
    assert trained(Linear, UNEQUAL, columns) != large  # a mean of means is something else


class MeanOverTokens(Tokens):
    def construct(self, x, mask):
        total, count = super().construct(x, mask)
        return total / count


def test_token_weights_match_large_batch():
    mask = np.zeros(16, np.float32)
    mask[[0, 1, 2, 3, 8, 13, 14, 15]] = 1  # 4, 1, 1 and 2 tokens in four micro-batches of four
    columns = [rows(16), mask]
    large = stock(MeanOverTokens(), columns)
    assert trained(Tokens, EQUAL, columns, normalize="weights") == large
    assert trained(Tokens, [16], columns, normalize="weights") == large
    assert trained(MeanOverTokens, EQUAL, columns) != large  # the well-known error
    mask = np.zeros(16, np.float32)
    mask[[0, 5]] = 1 / 8  # they may sum to less than one
    columns = [rows(16), mask]
    assert trained(Tokens, EQUAL, columns, normalize="weights") == stock(MeanOverTokens(), columns)


def test_micro_batch_without_tokens_adds_nothing():
    mask = np.array([1, 1, 1, 1, 0, 0, 0, 0], np.float32)
    cell = build(2, Tokens, normalize="weights")
    (full, empty), x = split([4, 4], mask), rows(8)
    assert cell(ms.Tensor(x[:4]), *full).asnumpy().tolist() == float((x[:4] @ np.arange(WIDTH)).sum() / 4)
    assert tensors(cell)["accum.w"] == x[:4].sum(0).tobytes()
    assert cell(ms.Tensor(x[4:]), *empty).asnumpy().tolist() == 0
    assert cell.counters.updates == 1
    assert learned(cell)["w"] == stock(MeanOverTokens(), [x[:4], mask[:4]], 1)["w"]


class Counted(Tokens):
    def construct(self, x, mask):
        total, count = super().construct(x, mask)
        return total, count.reshape((1,)).astype(ms.int32)


def test_cycle_without_tokens_has_zero_gradients():
    cell = build(2, Counted, normalize="weights")
    before = tensors(cell)["w"]
    for _ in range(2):
        cell(ms.Tensor(rows(4)), ms.Tensor(np.zeros(4, np.float32)))
    assert cell.updated
    assert (cell.gradient_norm.asnumpy().tolist(), tensors(cell)["w"]) == (0, before)


WINDOW = 3
SCALERS = {
    "amp.StaticLossScaler": lambda: amp.StaticLossScaler(1024),
    "amp.DynamicLossScaler": lambda: amp.DynamicLossScaler(1024, 2, WINDOW),
    "nn.DynamicLossScaleUpdateCell": lambda: nn.DynamicLossScaleUpdateCell(1024, 2, WINDOW),
    "nn.FixedLossScaleUpdateCell": lambda: nn.FixedLossScaleUpdateCell(1024),
}
DYNAMIC = [name for name in SCALERS if "Dynamic" in name]
HUGE = np.full_like(rows(4), 3e38)  # its gradient is finite, and is not once it is scaled


def scale_of(cell):
    return float(cell.loss_scale.scale.asnumpy())


@each_mode
def test_overflow_in_cycle_skips_its_update(mode):
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
        assert not any(any(parameter.asnumpy().tobytes()) for parameter in cell.accumulators), scaler
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


def test_schedule_is_asked_at_every_cycle_start():
    """By the updates so far, to which a skipped one does not count."""
    cell = build({0: 2, 1: 3, 2: 1}, loss_scaler=amp.DynamicLossScaler(1024, 2, WINDOW))
    seen = []
    for data in (HUGE, *[rows(4)] * 7):
        cell(ms.Tensor(data))
        seen.append((cell.counters.cycles, cell.counters.updates, cell.accumulation_steps))
    assert seen == [(0, 0, 2), (1, 0, 2), (1, 0, 2), (2, 1, 3), (2, 1, 3), (2, 1, 3), (3, 2, 1), (4, 3, 1)]


def test_what_is_no_scaler_is_refused():
    for scaler in (1024, nn.Dense(2, 2), "dynamic"):
        with pytest.raises(TypeError, match=r"loss_scaler must be an amp\.StaticLossScaler"):
            build(loss_scaler=scaler)
    with pytest.raises(ValueError, match="on_k_change must be"):
        ck.Training(on_k_change="now")


EPOCHS = 3


def test_flushed_cycle_averages_its_micro_batches():
    cell = build(4, remainder="flush")
    data = rows(24)
    for first in range(0, 24, 4):
        cell(ms.Tensor(data[first : first + 4]))
    assert cell.counters.micro_step == 2
    cell.end_epoch()
    assert cell.updated
    assert not any(any(parameter.asnumpy().tobytes()) for parameter in cell.accumulators)
    plain = nn.TrainOneStepCell(network := Linear(), momentum(network)).set_train()
    plain(ms.Tensor(data[:16]))
    plain(ms.Tensor(data[16:]))
    assert learned(cell) == learned(plain)


def test_a_dropped_cycle_leaves_no_trace():
    cell, short = build(4, remainder="drop"), build(4)
    for seed in range(10):
        cell(ms.Tensor(rows(4, seed)))
        if seed not in (4, 5):
            short(ms.Tensor(rows(4, seed)))
        if seed == 5:
            cell.end_epoch()
            assert not cell.updated
    assert learned(cell) == learned(short)
    assert (cell.counters.cycles, cell.counters.updates, cell.counters.micro_steps) == (3, 2, 10)


def test_epoch_end_at_boundary_changes_nothing():
    for remainder in ("carry", "flush", "drop"):
        cell = build(4, remainder=remainder)
        for done in range(5):
            if done % 4 == 0:
                before = tensors(cell), cell.counters
                cell.end_epoch()
                assert (tensors(cell), cell.counters) == before, remainder
            cell(ms.Tensor(rows(4, done)))


def test_ones_own_loop_ends_its_epochs(tmp_path):
    """With the cell's end_epoch, before the save there; else it is refused."""

    def own_loop(remainder, end_epoch, epochs=2):
        cell, data = accumulation_cell(remainder="drop" if remainder == "carry" else "carry"), pipeline()
        state = ck.StateManager(cell, data)
        cell.remainder = remainder  # a loop may set it late
        with ck.CheckpointManager(tmp_path / f"{remainder}-{end_epoch}", save=ck.SaveEvery(micro_steps=99)) as manager:
            manager.restore(state)
            batches = data.create_tuple_iterator(num_epochs=epochs)
            state.iterator_made()
            for _ in range(epochs):
                for number, batch in enumerate(batches, 1):
                    cell(*batch)
                    if number == SIZE and end_epoch == "before":
                        cell.end_epoch()
                    manager.step(state)
                    if number == SIZE and end_epoch == "after":
                        cell.end_epoch()
        return cell.counters.cycles, cell.counters.micro_steps

    for remainder, cycles in (("carry", 2 * SIZE // K), ("flush", 6), ("drop", 6)):
        assert own_loop(remainder, "before") == (cycles, 2 * SIZE), remainder
    for remainder, end_epoch in (("flush", "after"), ("drop", "never")):
        with pytest.raises(ck.ResumeError, match=rf"an epoch of {SIZE} batches ended within a cycle.*end_epoch\(\)"):
            own_loop(remainder, end_epoch)


def test_restored_counters_await_nothing():
    cell = accumulation_cell(1, remainder="drop")
    cell(*map(ms.Tensor, samples(4).values()))
    assert cell.updated
    mark_half_restored([cell], "it")
    cell.load_counters(cell.counters)
    assert not cell.updated
    refuse_half_restored([cell])  # whoever gives it counters has given it its parameters
    cell = accumulation_cell(remainder="drop")
    cell.expect_epoch_end()
    cell.load_counters(cell.counters)
    cell(*map(ms.Tensor, samples(4).values()))
    assert cell.counters.micro_step == 1


GROWING = {0: 1, 3: 2, 6: 5}
STEPS = EPOCHS * SIZE


def test_resumes_exactly_within_cycles_of_every_length(tmp_path):
    for number, (steps, kills) in enumerate([(GROWING, (3, 7, 10, 13)), (lambda step: 1 + step // 2, (9,))]):
        cell = functools.partial(accumulation_cell, steps)
        found, _ = survived(tmp_path / str(number), kills, 2, cell=cell)
        assert found == Job(cell=cell).uninterrupted(2).steps, number


@pytest.mark.parametrize(("at", "mode"), [(12, "pynative"), (9, "pynative"), (11, "graph")])
def test_changed_k_takes_effect_at_next_boundary(tmp_path, at, mode):
    crashed(tmp_path, at, mode=mode)
    job = Job(cell=lambda: accumulation_cell(3), mode=mode)
    steps = job.resumed(checkpoints(tmp_path, on_k_change="next_cycle"), EPOCHS).steps
    # The same as a schedule that had planned it so: two cycles, or three, of 4, and then 3.
    cycles_of_four = 2 if at == 9 else 3
    planned = Job(cell=lambda: accumulation_cell({0: 4, cycles_of_four: 3}), mode=mode)
    expected = planned.uninterrupted(EPOCHS).steps
    assert steps == {step: expected[step] for step in range(at, STEPS + 1)}
    assert job.cell.counters == planned.cell.counters


def test_a_function_of_k_that_depends_on_other_things_is_told_so(tmp_path):
    given = {"k": 4}

    def cell():
        return accumulation_cell(lambda updates: given["k"])

    crashed(tmp_path, 9, cell=cell)
    given["k"] = 9
    said = (
        r"=4 at this step, this train cell has 9 at this step.*depends on given. Let it depend on the number of updates"
    )
    with pytest.raises(ck.ResumeError, match=said):
        Job(cell=cell).resumed(checkpoints(tmp_path), EPOCHS)
