"""Trains with MindSpore, saves at epoch ends, resumes: ``python mindspore_job.py ckptkit|ModelCheckpoint FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint

import ckptkit as ck

EPOCHS, BATCHES = 4, 4


def main(system: str, folder: Path) -> None:
    ms.set_seed(1)
    rows = np.random.default_rng(0).random((8 * BATCHES, 4), np.float32)
    data = ds.NumpySlicesDataset({"x": rows, "y": rows[:, :1]}, shuffle=False).batch(8)
    network = nn.WithLossCell(nn.Dense(4, 1), nn.MSELoss())
    model = Model(nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.01)))
    if system == "ckptkit":
        saving = ck.Saving(when_busy="wait")
        ckpt = ck.CheckpointCallback(folder / "run", save=ck.SaveEvery(optimizer_steps=BATCHES), saving=saving)
        begun = ckpt.train(model, EPOCHS, data).batches_delivered
    else:
        saver = ModelCheckpoint("own", str(folder / "run"), CheckpointConfig(BATCHES, append_info=["epoch_num"]))
        saved = sorted((folder / "run").glob("*.ckpt"), key=lambda file: file.stat().st_mtime_ns)
        epoch = 0
        if saved:
            loaded = ms.load_checkpoint(str(saved[-1]))
            ms.load_param_into_net(model.train_network, loaded)
            epoch = int(loaded["epoch_num"].asnumpy())
        begun = epoch * BATCHES
        if epoch < EPOCHS:
            model.train(EPOCHS, data, callbacks=[saver], initial_epoch=epoch)
    print("resumed from step", begun)
    final = b"".join(parameter.asnumpy().tobytes() for parameter in model.train_network.get_parameters())
    (folder / "final.bin").write_bytes(final)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
