"""A training loop of one's own. loop_resumed.py is what it becomes."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

ms.set_seed(1)
digits = np.load("digits.npz")
dataset = ds.NumpySlicesDataset((digits["images"], digits["labels"]), ["image", "label"]).batch(32)

net = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
gradients = ms.value_and_grad(lambda image, label: loss_fn(net(image), label), None, optimizer.parameters)

for epoch in range(3):
    for image, label in dataset.create_tuple_iterator():
        loss, grads = gradients(image, label)
        optimizer(grads)
    print(f"epoch {epoch}: loss {loss.asnumpy():.4f}")

ms.save_checkpoint(net, "digits.ckpt")
