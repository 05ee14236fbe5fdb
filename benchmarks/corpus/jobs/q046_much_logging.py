# truth: exact
# class: outside
# Everything is logged (CSV, JSON lines, SQLite, a writer thread, a running mean for the display), nothing read back.

import csv
import datetime
import hashlib
import json
import os
import queue
import sqlite3
import threading
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(56)


class Writer:
    def __init__(self, path):
        self.path, self.queue = path, queue.Queue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with open(self.path, "a", encoding="utf-8") as file:
            while (item := self.queue.get()) is not None:
                file.write(json.dumps(item) + "\n")
                file.flush()

    def close(self):
        self.queue.put(None)
        self.thread.join()


class Dashboard:
    def __init__(self):
        self.mean, self.begun = None, time.time()

    def show(self, number, loss):
        self.mean = loss if self.mean is None else 0.95 * self.mean + 0.05 * loss
        rate = (time.time() - self.begun) / (number + 1)
        print(
            f"[{datetime.datetime.now():%H:%M:%S}] step {number} loss {loss:.4f} mean {self.mean:.4f} {rate:.3f} s/it"
        )


r = np.random.RandomState(46)
x = r.randn(60, 5).astype(np.float32)
y = (x[:, :1] - x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
writer, dashboard = Writer("log.jsonl"), Dashboard()
db = sqlite3.connect("log.db")
db.execute("CREATE TABLE IF NOT EXISTS losses (step INTEGER, loss REAL, at REAL)")
table = open("log.csv", "a", newline="")
rows = csv.writer(table)
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=3,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    loss, grads = grad_fn(a, b)
    opt(grads)
    value = float(loss)
    dashboard.show(number, value)
    writer.queue.put({"step": number, "loss": value})
    db.execute("INSERT INTO losses VALUES (?, ?, ?)", (number, value, time.time()))
    db.commit()
    rows.writerow([number, value])
    table.flush()
writer.close()
table.close()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
