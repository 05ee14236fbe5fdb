"""model_checkpoint.py with ckptkit's callback: started again, it continues exactly."""

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

ms.set_seed(1)
digits = load_digits()
dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"]).batch(48)
network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
model = ms.Model(network, nn.CrossEntropyLoss(), nn.Adam(network.trainable_params(), learning_rate=0.01))
ckpt = ck.CheckpointCallback("runs/digits", save=ck.SaveEvery(optimizer_steps=20), keep=ck.KeepLatest(3))
ckpt.train(model, 2, dataset)
