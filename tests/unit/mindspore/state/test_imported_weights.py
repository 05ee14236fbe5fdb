"""A run that begins with imported weights: as by hand, to the bit, and then as any other run."""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Model
from support.corrupt import corrupt
from support.training import (
    SIZE,
    Job,
    Mlp,
    accumulation_cell,
    begin_process,
    checkpoints,
    crashed,
    digest,
    pipeline,
    samples,
    tensors,
)

import ckptkit as ck
from ckptkit.mindspore.train.cell import mark_half_restored, refuse_half_restored
from ckptkit.tools.interchange import import_weights


@pytest.fixture
def donor(tmp_path):
    """A `.ckpt` of a whole train cell that has trained: weights, moments, counters."""
    begin_process(seed=77)
    cell = accumulation_cell()
    Model(cell).train(1, pipeline(16))
    ms.save_checkpoint(cell, str(tmp_path / "donor.ckpt"))
    return tmp_path / "donor.ckpt"


def by_hand(donor, epochs=3):
    job = Job()
    left, _ = ms.load_param_into_net(job.cell.network, ms.load_checkpoint(str(donor)))
    assert left == []
    return job.uninterrupted(epochs).steps


def test_import_equals_weights_loaded_by_hand(root, donor, shown):
    """Such a run resumes as any other."""
    expected = by_hand(donor)
    assert expected != Job().uninterrupted(1).steps
    imported = import_weights(donor, root)
    assert imported.checkpoint == "a000001-c0000000000-m0000"
    first = crashed(root, SIZE + 3)
    assert first.trace.steps == {step: expected[step] for step in range(1, SIZE + 4)}
    assert "imported from donor.ckpt" in shown()
    assert "the optimizer's state, accumulators, counters, random state, data position" in shown()
    resumed = Job().resumed(checkpoints(root), 3)
    assert resumed.steps == {step: expected[step] for step in range(SIZE + 3, 3 * SIZE + 1)}
    second = json.loads((Path(root) / "attempts/000002.json").read_bytes())
    assert second["parent"] == imported.checkpoint


class Scaled(nn.TrainOneStepCell):
    """A train cell with a parameter that is neither the network's nor the optimizer's."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.scale = ms.Parameter(ms.Tensor(64.0, ms.float32), name="scale", requires_grad=False)


def test_foreign_cell_takes_weights_keeping_its_loss_scale(root, tmp_path, shown):
    begin_process()
    cells = [Scaled(one, nn.Momentum(one.trainable_params(), 0.1, 0.9)) for one in (Mlp(), Mlp())]
    cells[0].scale.set_data(ms.Tensor(8.0, ms.float32))
    weights = [{"name": one.name, "data": one} for one in (*cells[0].network.get_parameters(), cells[0].scale)]
    ms.save_checkpoint(weights, str(tmp_path / "whole.ckpt"))
    imported = import_weights(tmp_path / "whole.ckpt", root)
    point = ck.CheckpointManager(root).restore(ck.StateManager(cells[1]))
    assert (point.batches_delivered, point.checkpoint) == (0, imported.checkpoint)
    assert "imported, but not weights of this training, and ignored: scale" in shown()
    assert float(cells[1].scale) == 64
    assert tensors(cells[1].network) == tensors(cells[0].network)


def test_import_mismatches_are_all_listed(root, tmp_path, monkeypatch):
    """Names, shapes and dtypes are listed, and nothing is changed."""
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")
    begin_process(seed=77)
    weights = {one.name: one for one in Mlp().get_parameters()}
    weights["old.hidden.weight"] = weights.pop("hidden.weight")
    weights["out.bias"] = ms.Parameter(np.zeros(4, np.float32))
    weights["out.weight"] = ms.Parameter(weights["out.weight"].astype(ms.float16))
    file = tmp_path / "other.safetensors"
    ms.save_checkpoint(weights, str(file), format="safetensors")
    import_weights(file, root)
    job = Job()
    before = digest(job.cell)
    with pytest.raises(ck.StateMismatchError) as raised:
        job.started(checkpoints(root), 1)
    for words in (
        *("--rename OLD=NEW", "other.safetensors", "not imported, but in this training: hidden.weight"),
        *("imported, but not in this training: old.hidden.weight", "out.weight: the checkpoint has F16"),
        "out.bias: the checkpoint has F32 [4], this training has F32 [3]",
    ):
        assert words in str(raised.value)
    assert digest(job.cell) == before
    assert sorted(path.name for path in (Path(root) / "attempts").iterdir()) == ["000001.json"]


def test_fallback_to_import_requires_fresh_optimizer(root, donor):
    """Half of a corrupt checkpoint was read before the import was taken instead."""
    expected = by_hand(donor, epochs=1)
    imported = import_weights(donor, root)
    crashed(root, 6, 1)
    (shard,) = Path(root).glob("checkpoints/a000002-*/rank-00000/optimizer-000.safetensors")
    corrupt(shard, at=-1, mask=1)
    with pytest.raises(ck.ResumeError, match=f'checkpoint="{imported.checkpoint}", rewind=True'):
        Job().started(checkpoints(root), 1)
    job = Job()
    checkpoints(root).train(job.model, 1, job.data, callbacks=[job.trace], checkpoint=imported.checkpoint, rewind=True)
    assert job.trace.steps == expected


def test_half_read_import_may_be_read_again(root, donor):
    """But no import into a model that was trained."""
    imported = import_weights(donor, root)
    begin_process()
    cell = accumulation_cell().set_train()
    mark_half_restored([cell], imported.checkpoint)  # as by a read that failed
    ck.CheckpointManager(root).restore(ck.StateManager(cell))
    refuse_half_restored([cell])
    cell(*map(ms.Tensor, samples(4).values()))
    with pytest.raises(ck.ResumeError, match="holds imported weights only, to begin with, but the train cell was call"):
        ck.CheckpointManager(root).restore(ck.StateManager(cell))
