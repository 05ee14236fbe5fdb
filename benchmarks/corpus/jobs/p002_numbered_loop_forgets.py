# truth: differs
# class: attribute

import os, types
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn
import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
columns = {"x": g.normal(size=(64, 8)).astype(np.float32), "y": g.normal(size=(64, 1)).astype(np.float32)}
dataset = ds.NumpySlicesDataset(columns).batch(8)
network, loss_fn = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1)), nn.MSELoss()
optimizer = nn.Adam(network.trainable_params(), 0.01)
gradients = ms.value_and_grad(lambda x, y: loss_fn(network(x), y), None, optimizer.parameters)


class Trainer:
    def __init__(self):
        self.scale, self.average = 1.0, None

    def train(self, dataset):
        options = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
        cells = [network, optimizer, self.average]
        run = ck.loop(os.environ["ROOT"], dataset, epochs=3, train=cells, as_dict=True, **options)
        for data in run:
            number = run.step
            weight = np.float32(1 / (1 + number))
            loss, grads = gradients(data["x"], data["y"] * weight * self.scale)
            optimizer(grads)
            if number % 2:
                continue
            self.scale = 0.9 * self.scale + 0.1 * float(loss)


Trainer().train(dataset)
os._exit(0)
