# truth: exact
# class: file

import csv
import json
import os
import time
from collections import deque
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
OUT = Path(ROOT).parent / "logs"
OUT.mkdir(exist_ok=True)
ms.set_seed(4)


class SummaryWriter:
    """Writes scalars as JSON lines, by tag."""

    def __init__(self, folder):
        self.file = open(folder / "scalars.jsonl", "a")
        self.began = time.time()

    def add_scalar(self, tag, value, step):
        self.file.write(json.dumps({"tag": tag, "value": value, "step": step, "at": time.time() - self.began}) + "\n")
        self.file.flush()


class Progress:
    def __init__(self, total, every=6):
        self.total, self.every, self.done, self.losses = total, every, 0, deque(maxlen=10)
        self.began = time.perf_counter()

    def __call__(self, loss):
        self.done += 1
        self.losses.append(loss)
        if self.done % self.every == 0:
            rate = self.done / (time.perf_counter() - self.began)
            print(f"[{self.done}/{self.total}] loss {np.mean(self.losses):.4f} {rate:.1f} it/s")


class CsvLog:
    def __init__(self, path):
        new = not path.exists()
        self.file = open(path, "a", newline="")
        self.writer = csv.DictWriter(self.file, ["step", "loss", "norm"])
        if new:
            self.writer.writeheader()

    def log(self, **row):
        self.writer.writerow(row)
        self.file.flush()


rng = np.random.default_rng(1)
x = rng.normal(size=(96, 8)).astype(np.float32)
y = (x[:, 0] > x[:, 1]).astype(np.int32)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 2))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.Adam(net.trainable_params()), 2, clip_norm=1.0
)
cell.set_train()
writer, progress, log = SummaryWriter(OUT), Progress(36), CsvLog(OUT / "log.csv")
history = []
run = ck.loop(
    ROOT, dataset, epochs=3, train=cell, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
)
for a, b in run:
    step = run.step
    loss = float(cell(a, b))
    progress(loss)
    writer.add_scalar("train/loss", loss, step)
    history.append({"step": step, "loss": loss})
    if cell.updated:
        log.log(step=step, loss=loss, norm=float(cell.gradient_norm))
    if step % 12 == 11:
        (OUT / "history.json").write_text(json.dumps(history, indent=1))
print("best loss", min(h["loss"] for h in history))
