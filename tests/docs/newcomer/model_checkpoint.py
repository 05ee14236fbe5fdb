"""A training that saves with MindSpore's own callback. migrated.py is what it becomes."""

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.train import CheckpointConfig, ModelCheckpoint

from ckptkit.mindspore.digits import load_digits

ms.set_seed(1)
digits = load_digits()
dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"]).batch(48)
network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
model = ms.Model(network, nn.CrossEntropyLoss(), nn.Adam(network.trainable_params(), learning_rate=0.01))
config = CheckpointConfig(save_checkpoint_steps=20, keep_checkpoint_max=3)
model.train(2, dataset, callbacks=[ModelCheckpoint(prefix="digits", directory="checkpoints", config=config)])
