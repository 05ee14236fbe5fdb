"""Files that ckptkit exports, read by MindSpore, and files of MindSpore's, read by ckptkit: to the bit."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.training import Job, Mlp, accumulation_cell, begin_process, checkpoints, pipeline, tensors

import ckptkit as ck
from ckptkit.tools.interchange import export_weights, import_weights
from ckptkit.tools.interchange.weights_file import open_weights

FORMATS = ["ckpt", "safetensors"]
DTYPES = [ms.float64, ms.float32, ms.float16, ms.bfloat16, ms.int64, ms.int32, ms.int8, ms.uint8, ms.bool_]


class Mixed(nn.Cell):
    """Parameters of every dtype, scalars among them, beside one that is trained."""

    def __init__(self, seed=1):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.inner = nn.Dense(2, 2)
        made = {"weight": ms.Parameter(ms.Tensor(rng.normal(size=(2, 2)), ms.float32), name="weight")}
        for dtype in DTYPES:
            for shape in [(), (1,), (3, 2, 4)]:
                name = f"{dtype}_{'x'.join(map(str, shape)) or 'scalar'}".lower()
                tensor = ms.Tensor(np.asarray(rng.normal(size=shape) * 50)).astype(dtype)
                made[name] = ms.Parameter(tensor, name=name, requires_grad=False)
        self.held = ms.ParameterTuple(list(made.values()))

    def construct(self, x):
        return (self.inner(x) @ self.held[0]).mean()


def train_cell(network):
    trained = [*network.inner.trainable_params(), network.held[0]]
    return ck.AccumulationTrainCell(network, nn.Adam(trained, 1e-2), 2)


@pytest.mark.parametrize("end", FORMATS)
def test_each_reads_the_files_of_the_other_to_the_bit(root, tmp_path, end):
    """MindSpore loads every dtype, and no name is missing; a `.ckpt` has the bytes that it would write."""
    ours, theirs = tmp_path / f"ours.{end}", tmp_path / f"theirs.{end}"
    cell = train_cell(network := Mixed())
    with ck.CheckpointManager(root) as manager:
        manager.restore(state := ck.StateManager(cell))
        cell(ms.Tensor(np.ones((3, 2), np.float32)))
        manager.save(state).result()
    again, other = train_cell(Mixed(2)), Mixed(3)
    ck.CheckpointManager(root).restore(ck.StateManager(again))
    assert tensors(again.network) == tensors(network)
    export_weights(root, ours)
    loaded = ms.load_checkpoint(str(ours), format=end)
    expected = {one.name: one for one in network.get_parameters()}
    assert loaded.keys() == expected.keys()
    for name, one in expected.items():
        assert (loaded[name].dtype, tuple(loaded[name].shape)) == (one.dtype, tuple(one.shape)), name
        assert loaded[name].asnumpy().tobytes() == one.asnumpy().tobytes(), name
    assert ms.load_param_into_net(other, loaded, strict_load=True) == ([], [])
    assert tensors(other) == tensors(network)
    with open_weights(ours) as file:
        ordered = {name: expected[name] for name in file.tensors}
    if end == "ckpt":
        ms.save_checkpoint(ordered, str(theirs))
        assert ours.read_bytes() == theirs.read_bytes()
    extra = {"append_dict": {"note": "a text", "epoch_num": 3}, "crc_check": True} if end == "ckpt" else {}
    ms.save_checkpoint(network, str(theirs), format=end, **extra)
    assert import_weights(theirs, tmp_path / "imported").ignored == (("epoch_num", "note") if extra else ())
    export_weights(tmp_path / "imported", tmp_path / "out.safetensors")
    with open_weights(tmp_path / "out.safetensors") as file:
        assert {name: tensor.read() for name, tensor in file.tensors.items()} == tensors(network)


def test_mindspore_train_cell_continues_from_exported_optimizer(root, tmp_path):
    """Its moments, step and learning rate are those of the run: one more step of each gives the same weights."""
    ours = Job(cell=lambda: accumulation_cell(1))
    ours.started(checkpoints(root), 1)
    file = tmp_path / "x.ckpt"
    done = export_weights(root, file, with_optimizer=True)
    loaded = ms.load_checkpoint(str(file))
    assert {"global_step", "beta1_power", "learning_rate", "moment1.hidden.weight"} <= loaded.keys()
    assert done.left_out == ("counters", "random state", "data position", "stateful objects")
    begin_process()
    network = Mlp()
    theirs = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 1e-2))
    assert ms.load_param_into_net(theirs, loaded, strict_load=True) == ([], [])
    batch = next(pipeline(shuffle=False).create_tuple_iterator(num_epochs=1))
    theirs.set_train()
    ours.cell.set_train()
    theirs(*batch)
    ours.cell(*batch)
    # What a forward kernel reports (the loss, BatchNorm's statistics) may be rounded otherwise in its first launches,
    # and these are the first of one network and later ones of the other.
    of_theirs = {name: bits for name, bits in tensors(theirs).items() if "moving_" not in name}
    assert len(of_theirs) > 12
    assert of_theirs.items() <= tensors(ours.cell).items()
